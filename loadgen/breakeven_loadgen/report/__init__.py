"""What people see: terminal tables, progress, CSV and the HTML page. Computes no figures."""
