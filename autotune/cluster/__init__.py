"""One study on many devices of many hosts: a coordinator, which has the results database, and agents, which measure."""
