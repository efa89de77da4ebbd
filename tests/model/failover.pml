/*
 * PROTOCOL.md, section 11, with what it needs of sections 8 and 9: reducers and connections fail,
 * the set of workers is fixed. README.md says what is left out and why, and lists the NO_ macros:
 * each of them takes one rule away.
 *
 * WORKERS send CHUNKS of ROUNDS rounds of one key to two reducers of one lane each; chunk c is at
 * home in slot c, so a chunk is a stream, and a position in it is the number of a round.
 *
 * What is on its way: a RESULT, since the lane counts it as sent (`flying`); a connection that
 * breaks loses it, and keeps several of a stream in order. All else a side may say or hear as late as it
 * likes, which is the same as a late arrival: a worker counts what it sent as not sent when the
 * connection breaks or the stream moves, and routes and stable positions are told to every new one.
 */

#ifndef WORKERS
#define WORKERS 3
#endif
#ifndef CHUNKS
#define CHUNKS 2
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef KILLS
#define KILLS 1 /* a lane dies; it starts again, empty, sooner or later */
#endif
#ifndef BREAKS
#define BREAKS 0 /* a connection breaks */
#endif
#ifndef ALARMS
#define ALARMS 0 /* rank 0 believes a false suspicion */
#endif
#ifndef APART
#define APART 0 /* each chunk moves in runs of its own */
#endif

#define SLOTS 2
#define ROUTES (1 + 2 * (KILLS + BREAKS + ALARMS)) /* a fault puts a slot out, and in again */
#define EVERYONE ((1 << WORKERS) - 1)

/* A sum is the order of folding: base 16, rank + 1 for the body that the rank submitted for this
 * chunk and round, ALIEN for any other. RIGHT is 0x321: each rank once, in rank order. */
#define ALIEN 15
#if WORKERS == 2
#define RIGHT 33
#else
#define RIGHT 801
#endif

mtype = {LOST, PENDING, WELCOMED};        /* a worker's connection */
mtype = {CONTRIBUTION, HEARTBEAT, ROUTE}; /* a worker's frame */

/* --- routes: each is made once, by rank 0, so that its number stands for it --- */

typedef RouteList {
  bit live[SLOTS];
  byte since[SLOTS];
};
RouteList routes[ROUTES];
byte newest;

#define LIVE(route, slot) routes[route].live[slot]
#define SINCE(route, home) routes[route].since[home]
#define OTHER(slot) (1 - (slot))
#define OWNER(route, home) (LIVE(route, home) -> home : OTHER(home))
#define MOVES(before, after, home) (SINCE(before, home) != SINCE(after, home))

/* --- what a worker knows --- */

typedef Share {
  byte held;     /* bitmap of rounds: it has the result */
  byte freed;    /* stable: its copies below are gone */
  byte sent;     /* in this stream, on this connection */
  byte answered; /* in this stream */
  byte reported; /* done, as said in this stream on this connection */
};

typedef Worker {
  byte route;
  mtype link[SLOTS];
  byte bound[SLOTS]; /* the incarnation that it shares the streams with; 0: none */
  Share share[CHUNKS];
};
Worker worker[WORKERS];

/* --- what a lane knows --- */

typedef Cell { /* one chunk of one round */
  byte got;    /* bitmap of ranks */
  byte count;  /* of contributions */
  bit kept;    /* complete, the result in the cache */
  short sum;
  byte flying; /* bitmap of ranks that the RESULT is on its way to */
};

typedef Stream {
  Cell cell[ROUNDS];
  byte done[WORKERS];
  byte stable;
};

typedef Lane {
  bit up;
  bit formed; /* it has the run */
  byte incarnation;
  byte route;
  byte here; /* bitmap of ranks with a connection */
  Stream stream[CHUNKS];
};
Lane lane[SLOTS];

byte kills = KILLS, breaks = BREAKS, alarms = ALARMS;

/* Chunks do not read each other, and no connection, route or fault reads a chunk (a test of this
 * text says so): what all runs do to one chunk is what those runs do in which it alone moves. */
#if APART
byte followed; /* the chunk that moves in this run */
#define MOVING(h) (followed == h)
#else
#define MOVING(h) true
#endif

hidden byte i, j, k, n; /* scratch, no part of a state; so is the frame that is being taken: */
hidden mtype kind;
hidden byte rank, slot, home, number, route, told, body;

#define W worker[me]
#define L lane[slot]
#define S lane[slot].stream[home]
#define HOLDS(w, h, r) ((worker[w].share[h].held >> (r)) & 1)
#define DONE(w, h) (worker[w].share[h].held == 3 -> 2 : (worker[w].share[h].held & 1))

/* I6: what is freed, every rank has. */
inline nobody_needs(h, r) {
  for (k : 0 .. WORKERS - 1) {
    assert(HOLDS(k, h, r))
  }
}

/* ======== the lane ======== */

inline clear_stream(s, h) {
  for (j : 0 .. ROUNDS - 1) {
    lane[s].stream[h].cell[j].got = 0;
    lane[s].stream[h].cell[j].count = 0;
    lane[s].stream[h].cell[j].kept = 0;
    lane[s].stream[h].cell[j].sum = 0;
    lane[s].stream[h].cell[j].flying = 0
  }
  for (j : 0 .. WORKERS - 1) {
    lane[s].stream[h].done[j] = 0
  }
  lane[s].stream[h].stable = 0
}

/* Section 8: stable is the least done of all ranks; results below it are freed. */
inline take_done() {
  if
  :: told > S.done[rank] -> S.done[rank] = told
  :: else
  fi;
#ifdef NO_WAIT_FOR_ALL
  n = told;
#else
  n = ROUNDS;
  for (i : 0 .. WORKERS - 1) {
    if
    :: S.done[i] < n -> n = S.done[i]
    :: else
    fi
  }
#endif
  if
  :: n > S.stable ->
     for (i : S.stable .. n - 1) {
       nobody_needs(home, i);
       S.cell[i].got = 0;
       S.cell[i].count = 0;
       S.cell[i].kept = 0;
       S.cell[i].sum = 0;
       S.cell[i].flying = 0 /* a second copy, to a rank that has it */
     }
     S.stable = n
  :: else
  fi
}

#ifdef NO_RANK_ORDER
#define PLACE(cell) cell.count
#else
#define PLACE(cell) rank
#endif
#ifdef NO_DEDUPE
#define IS_DUPLICATE(cell) cell.kept
#else
#define IS_DUPLICATE(cell) ((cell.got >> rank) & 1)
#endif
#ifdef NO_ROUND
#define CELL S.cell[0] /* what has the number of a chunk is taken for it, of whatever round */
#else
#define CELL S.cell[number]
#endif

/* Section 9: exactly once. A second copy is answered from the cache. */
inline take_contribution() {
  if
  :: number < S.stable -> skip
  :: number >= S.stable && IS_DUPLICATE(CELL) ->
#ifndef NO_REDELIVERY
     CELL.flying = CELL.flying | (CELL.kept << rank)
#endif
     skip
  :: else ->
     CELL.got = CELL.got | (1 << rank);
     CELL.sum = CELL.sum + ((body == number + 1 -> rank + 1 : ALIEN) << (4 * PLACE(CELL)));
     CELL.count++;
     if
     :: CELL.count == WORKERS ->
        CELL.kept = 1;
        CELL.flying = L.here
     :: else
     fi
  fi
}

/* Section 11, Route: a lane that learns a route drops every stream that it moves. */
inline take_route() {
  if
  :: number > L.route ->
     for (i : 0 .. CHUNKS - 1) {
       if
       :: MOVES(L.route, number, i) -> clear_stream(slot, i)
       :: else
       fi
     }
     L.route = number
  :: else
  fi
}

#ifdef NO_STALE_DROP
#define IS_STALE false
#else
#define IS_STALE (SINCE(route, home) < SINCE(L.route, home))
#endif

/* A frame of a stream newer than the lane's route is a PROTOCOL error: the end of the job. */
inline take_frame() {
  if
  :: kind == ROUTE -> take_route()
  :: kind != ROUTE && IS_STALE -> skip
  :: else ->
     assert(slot == OWNER(L.route, home) && SINCE(route, home) <= SINCE(L.route, home));
     take_done();
     if
     :: kind == CONTRIBUTION -> take_contribution()
     :: else
     fi
  fi
}

/* ======== the worker ======== */

/* Section 11, Route: nothing of a stream that moved is left, and all of it that is not stable goes
 * to its new owner, also what this rank holds. */
inline begin_anew(w, h) {
#ifdef NO_RESEND_OF_HELD
  worker[w].share[h].sent = DONE(w, h);
#else
  worker[w].share[h].sent = worker[w].share[h].freed;
#endif
  worker[w].share[h].answered = worker[w].share[h].sent;
#ifndef NO_NEW_POSITIONS
  worker[w].share[h].reported = 0
#endif
}

inline learn_route(w, to) {
  assert(to > worker[w].route); /* I9 */
  for (i : 0 .. CHUNKS - 1) {
    if
    :: MOVES(worker[w].route, to, i) -> begin_anew(w, i)
    :: else
    fi
  }
  for (i : 0 .. SLOTS - 1) {
    if
    :: MOVES(worker[w].route, to, i) && worker[w].link[i] == WELCOMED ->
       worker[w].bound[i] = lane[i].incarnation
    :: MOVES(worker[w].route, to, i) && worker[w].link[i] != WELCOMED -> worker[w].bound[i] = 0
    :: else
    fi
  }
  worker[w].route = to
}

#define USABLE(w, s)                                                                             \
  (worker[w].link[s] == WELCOMED && worker[w].bound[s] == lane[s].incarnation)
#define MINE(h) OWNER(W.route, h)
#ifdef NO_ROUTE_FIRST
#define MAY_SPEAK(h) (MOVING(h) && USABLE(me, MINE(h)))
#else
#define MAY_SPEAK(h)                                                                             \
  (MOVING(h) && USABLE(me, MINE(h)) && lane[MINE(h)].route >= W.route)
#endif
#define MAY_SEND(h) (MAY_SPEAK(h) && W.share[h].sent < ROUNDS)
#define MAY_REPORT(h) (MAY_SPEAK(h) && W.share[h].reported < DONE(me, h))
#define MAY_TELL_ROUTE(s) (W.link[s] == WELCOMED && lane[s].route < W.route)

/* Section 9: the worker's own copy goes again, whatever became of the caller's buffer. */
#ifdef NO_COPY
#define BODY(h, r) (HOLDS(me, h, r) -> ALIEN : (r) + 1)
#else
#define BODY(h, r) ((r) + 1)
#endif

inline say(what, h, s, position) {
  kind = what;
  home = h;
  slot = s;
  number = position;
  rank = me;
  route = W.route;
  take_frame()
}

inline send_next(h) {
  W.share[h].sent++;
  W.share[h].reported = DONE(me, h);
  told = DONE(me, h);
  body = BODY(h, W.share[h].sent - 1);
  say(CONTRIBUTION, h, MINE(h), W.share[h].sent - 1)
}

inline report_done(h) {
  W.share[h].reported = DONE(me, h);
  told = DONE(me, h);
  say(HEARTBEAT, h, MINE(h), 0)
}

/* Of a stream that is still where it was? */
#define CURRENT(h)                                                                               \
  (MOVING(h) && USABLE(me, MINE(h)) && !MOVES(W.route, lane[MINE(h)].route, h))
#define FLIES(h, r) ((lane[MINE(h)].stream[h].cell[r].flying >> me) & 1)
#define ARRIVED(h, r) (CURRENT(h) && FLIES(h, r) && (r == 0 || !FLIES(h, 0)))
#define MAY_FREE(h) (CURRENT(h) && lane[MINE(h)].stream[h].stable > W.share[h].freed)

inline free_below(h, position) {
  for (i : W.share[h].freed .. position - 1) {
    nobody_needs(h, i)
  }
  W.share[h].freed = position;
  if
  :: W.share[h].sent < position -> W.share[h].sent = position
  :: else
  fi;
  if
  :: W.share[h].answered < position -> W.share[h].answered = position
  :: else
  fi
}

inline take_result(h, r) {
  slot = MINE(h);
  assert(lane[slot].stream[h].cell[r].sum == RIGHT); /* I1, I2, I3 */
  lane[slot].stream[h].cell[r].flying = lane[slot].stream[h].cell[r].flying - (1 << me);
  W.share[h].held = W.share[h].held | (1 << r);
  if
  :: W.share[h].answered <= r -> W.share[h].answered = r + 1
  :: else
  fi;
#ifdef NO_WAIT_FOR_STABLE
  free_below(h, DONE(me, h))
#endif
}

/* ROUTE: lanes pass it to all. */
#ifdef NO_RELAY
#define MAY_LEARN(s) false
#elif defined(NO_NEWER_ROUTE)
#define MAY_LEARN(s) (W.link[s] == WELCOMED && lane[s].route != W.route)
#else
#define MAY_LEARN(s) (W.link[s] == WELCOMED && lane[s].route > W.route)
#endif

/* Section 11, Connection lost: a lane goes on if it has the state of the run that it had. */
inline welcome(w, s) {
  worker[w].link[s] = WELCOMED;
#ifdef NO_INCARNATION
  worker[w].bound[s] = lane[s].incarnation;
#else
  if
  :: worker[w].bound[s] == 0 || !LIVE(worker[w].route, s) ->
     worker[w].bound[s] = lane[s].incarnation
  :: else
  fi;
#endif
  if
  :: lane[s].route > worker[w].route -> learn_route(w, lane[s].route)
  :: else
  fi
}

/* A lane that lost the run forms it anew, and welcomes nobody before all are there. */
inline connect(w, s) {
  worker[w].link[s] = PENDING;
  lane[s].here = lane[s].here | (1 << w);
  if
  :: lane[s].formed -> welcome(w, s)
  :: !lane[s].formed && lane[s].here == EVERYONE ->
     lane[s].formed = 1;
     for (n : 0 .. WORKERS - 1) {
       welcome(n, s)
     }
  :: else
  fi
}

#define STREAM(h)                                                                                \
  :: d_step { MAY_SEND(h) -> send_next(h); skip }                                                \
  :: d_step { MAY_REPORT(h) -> report_done(h); skip }                                            \
  :: d_step { MAY_FREE(h) -> free_below(h, lane[MINE(h)].stream[h].stable); skip }               \
  :: d_step { ARRIVED(h, 0) -> take_result(h, 0); skip }                                         \
  :: d_step { ROUNDS > 1 && ARRIVED(h, ROUNDS - 1) -> take_result(h, ROUNDS - 1); skip }

#define SLOT(s)                                                                                  \
  :: d_step { W.link[s] == LOST && lane[s].up -> connect(me, s); skip }                          \
  :: d_step { MAY_TELL_ROUTE(s) -> say(ROUTE, 0, s, W.route); skip }                             \
  :: d_step { MAY_LEARN(s) -> learn_route(me, lane[s].route); skip }

proctype Works(byte me) {
end:
  do
  STREAM(0)
#if CHUNKS > 1
  STREAM(1)
#endif
  SLOT(0)
  SLOT(1)
  od
}

/* ======== rank 0 makes routes ======== */

/* Section 11, Suspicion: of a live slot, because of its connection or of its lost state. */
#define SUSPECTS(w, s)                                                                           \
  (LIVE(worker[w].route, s) && worker[w].route >= SINCE(newest, s) &&                            \
   (worker[w].link[s] == LOST ||                                                                 \
    (worker[w].bound[s] != 0 && worker[w].bound[s] != lane[s].incarnation)))
#if WORKERS == 2
#define SUSPECTED(s) (SUSPECTS(0, s) || SUSPECTS(1, s))
#else
#define SUSPECTED(s) (SUSPECTS(0, s) || SUSPECTS(1, s) || SUSPECTS(2, s))
#endif
#define IS_NEW(s) (worker[0].link[s] == WELCOMED && worker[0].bound[s] != lane[s].incarnation)
#define MAY_PUT_OUT(s) (LIVE(newest, s) && LIVE(newest, OTHER(s)) && USABLE(0, OTHER(s)))
#define MAY_TAKE_IN(s)                                                                           \
  (!LIVE(newest, s) && worker[0].link[s] == WELCOMED && lane[s].here == EVERYONE)

inline make_route(s, lives) {
  assert(newest + 1 < ROUTES);
  for (i : 0 .. SLOTS - 1) {
    routes[newest + 1].live[i] = (i == s -> lives : LIVE(newest, i));
    routes[newest + 1].since[i] =
      (i == s || (!LIVE(newest, i) && i != s) -> newest + 1 : SINCE(newest, i))
  }
  newest++;
  learn_route(0, newest)
}

#define DECIDE(s)                                                                                \
  :: d_step { LIVE(newest, s) && SUSPECTED(s) && IS_NEW(s) -> make_route(s, 1) }                 \
  :: d_step { SUSPECTED(s) && !IS_NEW(s) && MAY_PUT_OUT(s) -> make_route(s, 0) }                 \
  :: d_step { MAY_TAKE_IN(s) -> make_route(s, 1) }                                               \
  :: d_step { alarms > 0 && MAY_PUT_OUT(s) -> alarms--; make_route(s, 0) }

proctype Decides() {
end:
  do
  DECIDE(0)
  DECIDE(1)
  od
}

/* ======== faults ======== */

/* Section 11, Connection lost: what had no answer goes again. */
inline lose(w, s) {
  for (i : 0 .. CHUNKS - 1) {
    for (j : 0 .. ROUNDS - 1) {
      lane[s].stream[i].cell[j].flying = lane[s].stream[i].cell[j].flying & (EVERYONE - (1 << w))
    }
    if
    :: OWNER(worker[w].route, i) == s ->
#ifndef NO_RESEND
       worker[w].share[i].sent = worker[w].share[i].answered;
#endif
       worker[w].share[i].reported = 0
    :: else
    fi
  }
  worker[w].link[s] = LOST;
  lane[s].here = lane[s].here & (EVERYONE - (1 << w))
}

inline kill(s) {
  for (n : 0 .. WORKERS - 1) {
    if
    :: worker[n].link[s] != LOST -> lose(n, s)
    :: else
    fi
  }
  for (n : 0 .. CHUNKS - 1) {
    clear_stream(s, n)
  }
  lane[s].up = 0;
  lane[s].formed = 0;
  lane[s].route = 0
}

/* Slots are alike where each is the home of a chunk: the first to die may be slot 0. */
#define MAY_DIE(s) (kills > 0 && lane[s].up && (CHUNKS < SLOTS || s == 0 || kills < KILLS))
#define MAY_BREAK(w, s) (breaks > 0 && worker[w].link[s] != LOST)
#define FAIL(s)                                                                                  \
  :: d_step { MAY_DIE(s) -> kills--; kill(s) }                                                   \
  :: d_step { !lane[s].up -> lane[s].up = 1; lane[s].incarnation++ }                             \
  :: d_step { MAY_BREAK(0, s) -> breaks--; lose(0, s) }                                          \
  :: d_step { MAY_BREAK(1, s) -> breaks--; lose(1, s) }

proctype Fails() {
end:
  do
  FAIL(0)
  FAIL(1)
#if WORKERS > 2
  :: d_step { MAY_BREAK(2, 0) -> breaks--; lose(2, 0) }
  :: d_step { MAY_BREAK(2, 1) -> breaks--; lose(2, 1) }
#endif
  od
}

/* I11: where nothing moves any more, every rank has every result, and no copy is left. */
proctype Watches() {
  timeout ->
  d_step {
    for (i : 0 .. WORKERS - 1) {
      for (j : 0 .. CHUNKS - 1) {
        assert(!MOVING(j) || worker[i].share[j].freed == ROUNDS)
      }
    }
  }
}

init {
  d_step {
    for (i : 0 .. SLOTS - 1) {
      routes[0].live[i] = 1;
      lane[i].up = 1;
      lane[i].formed = 1;
      lane[i].incarnation = 1;
      lane[i].here = EVERYONE;
      for (j : 0 .. WORKERS - 1) {
        worker[j].link[i] = WELCOMED;
        worker[j].bound[i] = 1
      }
    }
  }
  atomic {
#if APART
    if
    :: followed = 0
    :: followed = 1
    fi;
#endif
    for (i : 0 .. WORKERS - 1) {
      run Works(i)
    }
    run Decides();
    run Fails();
    run Watches()
  }
}
