// The probe: it comes with what it adds to kernels.
#include "table.h"
