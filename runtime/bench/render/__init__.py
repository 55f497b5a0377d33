"""The report for people: page, summary, rows, terminal. Pure functions of the report."""
