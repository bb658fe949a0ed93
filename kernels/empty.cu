// Nothing: what a launch costs when there is no work.

extern "C" __global__ void empty() {}
