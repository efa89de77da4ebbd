/* The lower bound: every worker gets its own bytes back, and nothing is summed. */
#include "server.h"

static void on_chunk(struct connection* from, struct buffer* part) {
  send_to(from, part);
  release(part);
}

int main(int argc, char** argv) { return serve(argc, argv, on_chunk); }
