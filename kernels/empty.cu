// No work: the cost of a launch alone.

extern "C" __global__ void empty() {}
