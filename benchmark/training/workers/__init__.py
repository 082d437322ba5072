"""One cell on several processes, of this machine or a Ray cluster, bit for bit as on one."""
