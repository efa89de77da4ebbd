/* The loops over blocks for any machine. */
#define LEVEL baseline
#include "blocks.inc"
