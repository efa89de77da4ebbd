/* Any machine: the compiler's flags are in CMakeLists.txt. */
#define LEVEL baseline
#include "loops.inc"
