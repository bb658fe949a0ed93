// What kernels and the probe share.
#pragma once
