// What runs behind the accesses of kernels.
#include "table.h"
