// Every `new` of this program can be made to fail: how a call that finds no memory leaves things.
#pragma once

// The n-th allocation of this thread from now on fails with std::bad_alloc, 0 being the next one.
void fail_allocation(long n);

// Takes that back; whether it had come to that.
bool allocation_failed();
