"""One run against one target: send, observe, write rows, sum up, judge the run's validity."""
