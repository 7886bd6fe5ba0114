"""Tune a study on many devices of many hosts: a coordinator with the results database, and cluster workers."""
