// Lets any `new` of the program fail, to test calls that run out of memory.
#pragma once

// Makes the n-th next allocation of this thread throw std::bad_alloc; 0 is the next one.
void fail_allocation(long n);

// Cancels the failure. Returns whether it has happened.
bool allocation_failed();
