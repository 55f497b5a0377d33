"""From a report to the two settings of the return: TTL and threshold."""
