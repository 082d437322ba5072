"""One cell on several processes of this machine, with the bits of one."""
