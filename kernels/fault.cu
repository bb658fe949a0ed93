// What programs do by mistake, done on purpose: tests look at how the device's error comes back.

extern "C" __global__ void trap() {
    asm volatile("trap;");
}

// Writes four bytes, wherever that is.
extern "C" __global__ void poke(unsigned long long address, unsigned value) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *(volatile unsigned*)address = value;
}
