"""Files, clocks, disks and surroundings that attack: one clear line each, nothing lost, nothing left behind."""
