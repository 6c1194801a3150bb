"""What is sent and when: trace formats, arrival times, content, and the pacer."""
