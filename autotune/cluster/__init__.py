"""One study on many devices of many hosts: a coordinator, which has the results database, and cluster workers."""
