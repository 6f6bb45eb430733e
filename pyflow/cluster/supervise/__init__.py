"""Starting ranks, noticing their loss, and restarting a job that has lost one."""
