"""What a dispatcher is: kernels with their predicates, a rule that chooses, and its text in C++."""
