"""A dispatcher: its record and its C++, and how it is made of a tuned study's layers and kernels."""
