// Errors that programs make by mistake, made on purpose: tests check how the device's error is returned.

extern "C" __global__ void trap() {
    asm volatile("trap;");
}

// Writes four bytes to any address.
extern "C" __global__ void poke(unsigned long long address, unsigned value) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *(volatile unsigned*)address = value;
}
