"""Search on recorded results, without a device."""
