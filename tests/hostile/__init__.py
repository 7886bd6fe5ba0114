"""Hostile files, clocks, disks and surroundings: one clear line each, nothing lost, nothing left behind."""
