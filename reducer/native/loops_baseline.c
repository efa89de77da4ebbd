/* The loops for any machine; CMakeLists.txt sets the compiler's flags. */
#define LEVEL baseline
#include "loops.inc"
