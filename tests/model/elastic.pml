/*
 * The set of workers changes while reducers fail: PROTOCOL.md, section 11. README.md says what is
 * left out and why, and lists the NO_ macros: each of them takes one rule away.
 *
 * WORKERS reduce one chunk of one round over LANES lanes. A view is (epoch, members), and the
 * registry keeps the newest one. A route is (epoch, number, lane of the chunk): every route here
 * moves the stream of the chunk, since other routes change nothing. A sum is the bitmap of the
 * ranks in it. The registry is not lost here (registry_loss.pml).
 *
 * In flight: a RESULT, since the lane counts it as sent (`air`). It arrives at any later time, even
 * after its lane died, or is lost once its connection is. All other frames arrive when they are
 * sent: README.md says why this loses no run.
 */

#ifndef WORKERS
#define WORKERS 3
#endif
#ifndef EPOCHS
#define EPOCHS 2 /* views that the registry decides, the first included */
#endif
#ifndef DEATHS
#define DEATHS 1 /* a worker dies, and does not come back */
#endif
#ifndef KILLS
#define KILLS 1 /* a lane dies; it starts again, empty, sooner or later */
#endif
#ifndef BREAKS
#define BREAKS 0 /* a connection of rank 0, 1 or 2 breaks */
#endif
#ifndef ALARMS
#define ALARMS 0 /* the maker of routes believes a false suspicion of a lane */
#endif
#ifndef LANES
#define LANES 1
#endif
#ifndef READS
#define READS 1 /* a worker may read the registry without a reason */
#endif

#define EVERYONE ((1 << WORKERS) - 1)
#define ROUTES (1 + KILLS + ALARMS + (LANES - 1) * BREAKS) /* of one view, at most */
#ifdef NO_CAS
#define VIEWS (EPOCHS + 1)
#else
#define VIEWS EPOCHS
#endif

#define HAS(bitmap, rank) (((bitmap) >> (rank)) & 1)
#define WITHOUT(bitmap, rank) ((bitmap) & (EVERYONE - (1 << (rank))))

mtype = {CONTRIBUTION, HELD, DONE, ROUTE}; /* a worker's frame */

/* --- what the registry and the makers of routes have decided --- */

typedef View {
  byte members;
  byte routes;        /* made so far; the first is part of the record */
  byte place[ROUTES]; /* of each: the lane of the chunk */
#ifdef NO_CAS
  byte epoch;
#endif
#if !READS
  byte proposer;
#endif
};
View views[VIEWS];
byte decided = 1;

/* A route is the index of its view x ROUTES + its number in the view. */
#define VIEW(route) ((route) / ROUTES)
#define NUMBER(route) ((route) % ROUTES)
#define FIRST(view) ((view) * ROUTES)
#define LAST (decided - 1)
#define MEMBERS(route) views[VIEW(route)].members
#if LANES > 1
#define PLACE(route) views[VIEW(route)].place[NUMBER(route)]
#else
#define PLACE(route) 0
#endif
#ifdef NO_CAS /* an epoch may have two views */
#define EPOCH(route) views[VIEW(route)].epoch
#else
#define EPOCH(route) VIEW(route)
#endif
#ifdef NO_EPOCH_ORDER /* numbers go on over the epochs, and decide */
#define IS_NEWER(route, than) (VIEW(route) + NUMBER(route) > VIEW(than) + NUMBER(than))
#else
#define IS_NEWER(route, than)                                                                    \
  (EPOCH(route) > EPOCH(than) || (EPOCH(route) == EPOCH(than) && NUMBER(route) > NUMBER(than)))
#endif
#define IS_SAME(route, other) (!IS_NEWER(route, other) && !IS_NEWER(other, route))

/* --- what a worker knows --- */

typedef Flight { /* a RESULT of one epoch on its way to one rank */
  byte set;      /* 0: none */
  byte origin;
  byte from;     /* its lane */
  bit broken;    /* the connection is gone: it may be lost */
};

typedef Worker {
  bit alive;
  byte route;
  byte bound;   /* the incarnation that it shares the stream with; 0: none */
  byte set;     /* the result that it holds; 0: none */
  byte origin;  /* the view that summed it */
  bit freed;    /* stable: its copy is gone */
  bit sent;     /* the contribution or HELD, in this stream, on this connection */
  bit reported; /* done, in this stream, on this connection */
  Flight air[EPOCHS];
};
Worker worker[WORKERS];

/* --- what a lane knows --- */

typedef Lane {
  bit up;
  bit formed; /* it has the run */
  byte incarnation;
  byte route; /* while the run is forming: the newest that it was told */
  byte here;  /* bitmap of ranks with a connection */
  byte got;   /* bitmap of contributions */
  byte set;   /* the result in the cache; 0: none */
  byte origin;
  byte done;  /* bitmap of ranks that hold the result */
  bit stable;
};
Lane lane[LANES];

byte deaths = DEATHS, kills = KILLS, breaks = BREAKS, alarms = ALARMS;
byte settled; /* what a checkpoint was written from; 0: none */

hidden byte i, j, n; /* scratch, no part of a state; so is the frame that is being taken: */
hidden mtype kind;
hidden byte rank, slot, route;

#define W worker[me]
#define L lane[slot]
#define HERE HAS(lane[PLACE(W.route)].here, me)

/* I6: whatever is freed, every member that lives holds. */
inline nobody_needs() {
  for (n : 0 .. WORKERS - 1) {
    assert(!worker[n].alive || !HAS(views[LAST].members, n) || worker[n].set > 0)
  }
}

#define IS_MEMBER(rank) (worker[rank].alive && HAS(views[LAST].members, rank))
#define COUNTS(rank) (IS_MEMBER(rank) && worker[rank].set != 0)

/* I1: all results in the newest view are equal, and equal to what was written as settled. */
inline all_agree() {
  for (i : 0 .. WORKERS - 1) {
    for (n : 0 .. WORKERS - 1) {
      assert(!COUNTS(i) || !COUNTS(n) || worker[i].set == worker[n].set)
    }
    assert(!COUNTS(i) || settled == 0 || worker[i].set == settled)
  }
}

/* ======== the lane ======== */

/* Every rank that is connected gets the result; the copy for a holder is empty. */
inline answer(to) {
  if
  :: HAS(L.here, to) && HAS(MEMBERS(L.route), to) && worker[to].set == 0 ->
     worker[to].air[EPOCH(L.route)].set = L.set;
     worker[to].air[EPOCH(L.route)].origin = L.origin;
     worker[to].air[EPOCH(L.route)].from = slot;
     worker[to].air[EPOCH(L.route)].broken = 0
  :: else
  fi
}

inline complete(with, summed_by) {
  L.set = with;
  L.origin = summed_by;
#ifndef NO_VIEW_MOVES_ALL
  L.got = 0;
#endif
  for (i : 0 .. WORKERS - 1) {
    answer(i)
  }
}

inline take_contribution() {
  if
  :: L.set != 0 -> answer(rank)
  :: else ->
     L.got = L.got | (1 << rank);
     if
     :: (L.got & MEMBERS(L.route)) == MEMBERS(L.route) -> complete(L.got, VIEW(L.route))
     :: else
     fi
  fi
}

inline take_held() {
  if
  :: L.set != 0 -> assert(L.set == worker[rank].set) /* I1: other bits would end the job */
#ifdef NO_ORIGIN
  :: else -> complete(worker[rank].set, VIEW(L.route))
#else
  :: else -> complete(worker[rank].set, worker[rank].origin)
#endif
  fi
}

/* A worker may count the chunk as settled where every member holds the result. */
inline settle(with) {
  settled = with;
  all_agree()
}

#ifdef NO_STABLE_OF_VIEW
#define MUST_BE_DONE (MEMBERS(L.route) & (1 << rank))
#else
#define MUST_BE_DONE MEMBERS(L.route)
#endif

inline take_done() {
  L.done = L.done | (1 << rank);
  if
  :: !L.stable && (L.done & MUST_BE_DONE) == MUST_BE_DONE ->
     nobody_needs();
     L.stable = 1;
     L.got = 0;
     L.set = 0;
     L.origin = 0
  :: else
  fi
}

inline clear_stream(s) {
  lane[s].got = 0;
  lane[s].set = 0;
  lane[s].origin = 0;
  lane[s].done = 0;
  lane[s].stable = 0
}

/* A lane that learns a route drops all that the route moves. A new view moves everything. */
inline take_route() {
#ifdef NO_VIEW_MOVES_ALL
  n = (EPOCH(route) > EPOCH(L.route) -> L.got & MEMBERS(route) : 0);
  clear_stream(slot);
  L.got = n;
#else
  clear_stream(slot);
#endif
  L.route = route
}

#ifdef NO_LANE_FENCE
#define IS_STALE (EPOCH(route) == EPOCH(L.route) && IS_NEWER(L.route, route))
#else
#define IS_STALE IS_NEWER(L.route, route)
#endif

inline take_frame() {
  if
  :: kind == ROUTE -> take_route()
  :: kind != ROUTE && IS_STALE -> skip
  :: else ->
     assert(!IS_NEWER(route, L.route)); /* no frame comes before its view and its route */
     if
     :: L.stable -> skip
     :: !L.stable && kind == CONTRIBUTION -> take_contribution()
     :: !L.stable && kind == HELD -> take_held()
     :: else -> take_done()
     fi
  fi
}

/* ======== the worker ======== */

inline bind(w) {
  worker[w].bound = (
    lane[PLACE(worker[w].route)].formed && HAS(lane[PLACE(worker[w].route)].here, w) ->
    lane[PLACE(worker[w].route)].incarnation : 0)
}

inline land(w, at) {
  worker[w].air[at].set = 0;
  worker[w].air[at].origin = 0;
  worker[w].air[at].from = 0;
  worker[w].air[at].broken = 0
}

inline stop(w) {
  worker[w].alive = 0;
  for (i : 0 .. LANES - 1) {
    lane[i].here = WITHOUT(lane[i].here, w)
  }
  for (i : 0 .. EPOCHS - 1) {
    land(w, i)
  }
}

/* All that is not stable goes again. A rank outside the view ends. */
inline learn_route(w, to) {
  assert(EPOCH(to) >= EPOCH(worker[w].route)); /* I9 */
  worker[w].route = to;
  worker[w].sent = worker[w].freed;
#ifndef NO_NEW_POSITIONS
  worker[w].reported = 0;
#endif
  bind(w);
#ifndef NO_FENCE
  for (i : 0 .. EPOCH(to) - 1) {
    land(w, i)
  }
#endif
  if
  :: !HAS(MEMBERS(to), w) -> stop(w)
  :: else
  fi
}

#define USABLE                                                                                   \
  (lane[PLACE(W.route)].formed && HERE && W.bound == lane[PLACE(W.route)].incarnation)
#ifdef NO_VIEW_FIRST
#define MAY_SPEAK (W.alive && USABLE)
#else
#define MAY_SPEAK (W.alive && USABLE && !IS_NEWER(W.route, lane[PLACE(W.route)].route))
#endif

/* A rank that holds the result sends the result, any other sends its contribution. */
#ifdef NO_XOR
#define MAY_CONTRIBUTE (MAY_SPEAK && !W.sent)
#else
#define MAY_CONTRIBUTE (MAY_SPEAK && !W.sent && W.set == 0)
#endif
#define MAY_UPLOAD (MAY_SPEAK && !W.sent && W.set != 0)
#define MAY_REPORT (MAY_SPEAK && !W.reported && W.set != 0)

inline say(what, s) {
  kind = what;
  slot = s;
  rank = me;
  route = W.route;
  take_frame()
}

#define MAY_FREE                                                                                 \
  (W.alive && !W.freed && USABLE && IS_SAME(lane[PLACE(W.route)].route, W.route) &&              \
   lane[PLACE(W.route)].stable)

inline free_copy() {
  nobody_needs();
  W.freed = 1;
  W.sent = 1
}

/* A worker takes no result of an older epoch. A lane passes its view to a worker before results. */
#ifdef NO_FENCE
#define MAY_TAKE(epoch) (W.alive && W.air[epoch].set != 0 && epoch <= EPOCH(W.route))
#else
#define MAY_TAKE(epoch) (W.alive && W.air[epoch].set != 0 && epoch == EPOCH(W.route))
#endif
#define MAY_LOSE(epoch)                                                                          \
  (W.alive && W.air[epoch].set != 0 && (W.air[epoch].broken || epoch < EPOCH(W.route)))

/* The members of the view that summed a result, as the worker's own records say. */
#ifdef NO_CAS
#define LEDGER(view) (views[view].epoch == EPOCH(W.route) -> MEMBERS(W.route) : views[view].members)
#else
#define LEDGER(view) views[view].members
#endif

inline take_result(at) {
  if
  :: W.set == 0 ->
     W.set = W.air[at].set;
     W.origin = W.air[at].origin;
     /* I2 and I10: each member of the view that summed it, once, and nobody else. */
     assert(W.set == LEDGER(W.origin));
     all_agree();
#ifdef NO_SETTLED
     settle(W.set);
#endif
#ifdef NO_RESULTS_KEPT
     free_copy()
#endif
  :: else -> assert(W.set == W.air[at].set) /* I1: other bits would end the job */
  fi;
  land(me, at)
}

/* ======== connections ======== */

inline welcome(w, s) {
  if
  :: PLACE(worker[w].route) == s && worker[w].bound == 0 -> bind(w)
  :: else
  fi;
  if
  :: IS_NEWER(lane[s].route, worker[w].route) -> learn_route(w, lane[s].route)
  :: else
  fi
}

#ifdef NO_VIEW_IN_HELLO
#define ALL_ARE_HERE(s) (lane[s].here == EVERYONE)
#else
#define ALL_ARE_HERE(s) ((lane[s].here & MEMBERS(lane[s].route)) == MEMBERS(lane[s].route))
#endif

/* A lane without the run forms it again, from all members of the newest view that it was told. */
inline form(s) {
  if
  :: ALL_ARE_HERE(s) ->
     lane[s].formed = 1;
     for (j : 0 .. WORKERS - 1) {
       if
       :: HAS(lane[s].here, j) -> welcome(j, s)
       :: else
       fi
     }
  :: else
  fi
}

inline connect(w, s) {
  lane[s].here = lane[s].here | (1 << w);
  if
  :: lane[s].formed -> welcome(w, s)
  :: else ->
     if
     :: IS_NEWER(worker[w].route, lane[s].route) -> lane[s].route = worker[w].route
     :: else
     fi;
     form(s)
  fi
}

/* A worker tells each lane a newer route, also a lane that is still forming. */
inline tell_route(s) {
  if
  :: lane[s].formed -> say(ROUTE, s)
  :: else ->
     lane[s].route = W.route;
     form(s)
  fi
}

#ifdef NO_TELL_FORMING
#define MAY_TELL(s)                                                                              \
  (W.alive && HAS(lane[s].here, me) && lane[s].formed && IS_NEWER(W.route, lane[s].route))
#else
#define MAY_TELL(s) (W.alive && HAS(lane[s].here, me) && IS_NEWER(W.route, lane[s].route))
#endif
#ifdef NO_RELAY
#define MAY_LEARN(s) false
#else
#define MAY_LEARN(s)                                                                             \
  (W.alive && HAS(lane[s].here, me) && lane[s].formed && IS_NEWER(lane[s].route, W.route))
#endif

/* ======== who decides ======== */

#define IS_DEAD(rank, set) (HAS(set, rank) && !worker[rank].alive)
#if WORKERS == 3
#define ANY(holds, with) (holds(0, with) || holds(1, with) || holds(2, with))
#else
#define ANY(holds, with) (holds(0, with) || holds(1, with) || holds(2, with) || holds(3, with))
#endif
#if READS
#define HAS_REASON true
#else
#define HAS_REASON (ANY(IS_DEAD, MEMBERS(W.route)) || views[LAST].proposer == me)
#endif
#define MAY_READ                                                                                 \
  (W.alive && HAS_REASON && EPOCH(FIRST(LAST)) > EPOCH(W.route) && IS_NEWER(FIRST(LAST), W.route))

#ifdef NO_CAS
#define MAY_CAS (decided < VIEWS && EPOCH(W.route) + 1 < EPOCHS)
#else
#define MAY_CAS (decided < VIEWS && EPOCH(W.route) + 1 == decided)
#endif
#ifdef NO_SHRINK_ONLY
#define IS_NEXT(set) (set != MEMBERS(W.route) && !ANY(IS_DEAD, set))
#else
#define IS_NEXT(set) (set != MEMBERS(W.route) && (set & MEMBERS(W.route)) == set)
#endif
/* Any member may propose a view with itself: a suspicion may be false. */
#define MAY_PROPOSE(set) (W.alive && MAY_CAS && set <= EVERYONE && HAS(set, me) && IS_NEXT(set))

inline add_route(of_view, place_of) {
  assert(views[of_view].routes < ROUTES);
  views[of_view].place[views[of_view].routes] = place_of;
  views[of_view].routes++
}

inline make_route(place_of) {
  add_route(VIEW(W.route), place_of);
  learn_route(me, FIRST(VIEW(W.route)) + views[VIEW(W.route)].routes - 1)
}

inline propose(set, place_of) {
  views[decided].members = set;
#if !READS
  views[decided].proposer = me;
#endif
  add_route(decided, place_of);
  decided++;
#ifdef NO_CAS
  views[LAST].epoch = EPOCH(W.route) + 1;
  learn_route(me, FIRST(LAST))
#endif
}

/* The lowest member of a view makes its other routes, because of a suspicion of the present one. */
#ifdef NO_NEW_MAKER
#define IS_MAKER (me == 0)
#else
#define IS_MAKER ((MEMBERS(W.route) & ((1 << me) - 1)) == 0)
#endif
#define SUSPECTS(rank, place_of)                                                                 \
  (worker[rank].alive && worker[rank].route == W.route &&                                        \
   ((worker[rank].bound != 0 && worker[rank].bound != lane[PLACE(W.route)].incarnation) ||       \
    (place_of != PLACE(W.route) && !HAS(lane[PLACE(W.route)].here, rank))))
#define MAY_MOVE_TO(place_of)                                                                    \
  (W.alive && IS_MAKER && lane[place_of].formed && HAS(lane[place_of].here, me))
#define MAY_MAKE(place_of) (MAY_MOVE_TO(place_of) && ANY(SUSPECTS, place_of))
#define MAY_ERR(place_of) (alarms > 0 && MAY_MOVE_TO(place_of) && place_of != PLACE(W.route))

#define SET(set, s)                                                                              \
  :: d_step { MAY_PROPOSE(set) -> propose(set, s); skip }

#define LANE(s)                                                                                  \
  :: d_step { W.alive && lane[s].up && !HAS(lane[s].here, me) -> connect(me, s); skip }          \
  :: d_step { MAY_TELL(s) -> tell_route(s); skip }                                               \
  :: d_step { MAY_LEARN(s) -> learn_route(me, lane[s].route); skip }                             \
  :: d_step { MAY_MAKE(s) -> make_route(s); skip }                                               \
  :: d_step { MAY_ERR(s) -> alarms--; make_route(s); skip }                                      \
  SET(1, s)                                                                                      \
  SET(2, s)                                                                                      \
  SET(3, s)                                                                                      \
  SET(4, s)                                                                                      \
  SET(5, s)                                                                                      \
  SET(6, s)                                                                                      \
  SET(7, s)

#define RESULT_OF(epoch)                                                                         \
  :: d_step { MAY_TAKE(epoch) -> take_result(epoch); skip }                                      \
  :: d_step { MAY_LOSE(epoch) -> land(me, epoch); skip }

proctype Works(byte me) {
end:
  do
  :: d_step { MAY_CONTRIBUTE -> W.sent = 1; say(CONTRIBUTION, PLACE(W.route)); skip }
  :: d_step { MAY_UPLOAD -> W.sent = 1; say(HELD, PLACE(W.route)); skip }
  :: d_step { MAY_REPORT -> W.reported = 1; say(DONE, PLACE(W.route)); skip }
  :: d_step { MAY_FREE -> free_copy(); settle(W.set); skip }
  :: d_step { MAY_READ -> learn_route(me, FIRST(LAST)); skip }
  :: d_step { W.alive && deaths > 0 -> deaths--; stop(me); skip }
  RESULT_OF(0)
#if EPOCHS > 1
  RESULT_OF(1)
#endif
#if EPOCHS > 2
  RESULT_OF(2)
#endif
  LANE(0)
#if LANES > 1
  LANE(1)
#endif
#if WORKERS > 3
  SET(8, 0)
  SET(9, 0)
  SET(10, 0)
  SET(11, 0)
  SET(12, 0)
  SET(13, 0)
  SET(14, 0)
#endif
  od
}

/* ======== faults ======== */

/* What is not stable goes again, also a result. What is on its way may be lost. */
inline lose(w, s) {
  for (i : 0 .. EPOCHS - 1) {
    if
    :: worker[w].air[i].set != 0 && worker[w].air[i].from == s -> worker[w].air[i].broken = 1
    :: else
    fi
  }
  if
  :: PLACE(worker[w].route) == s ->
#ifdef NO_RESEND_OF_HELD
     worker[w].sent = worker[w].set != 0;
#else
     worker[w].sent = worker[w].freed;
#endif
     worker[w].reported = 0
  :: else
  fi;
  lane[s].here = WITHOUT(lane[s].here, w)
}

inline kill(s) {
  for (j : 0 .. WORKERS - 1) {
    if
    :: HAS(lane[s].here, j) -> lose(j, s)
    :: else
    fi
  }
  clear_stream(s);
  lane[s].up = 0;
  lane[s].formed = 0;
  lane[s].route = 0
}

#define FAIL(s)                                                                                  \
  :: d_step { kills > 0 && lane[s].up -> kills--; kill(s); skip }                                \
  :: d_step { !lane[s].up -> lane[s].up = 1; lane[s].incarnation++; skip }                       \
  :: d_step { breaks > 0 && HAS(lane[s].here, 0) -> breaks--; lose(0, s); skip }                 \
  :: d_step { breaks > 0 && HAS(lane[s].here, 1) -> breaks--; lose(1, s); skip }                 \
  :: d_step { breaks > 0 && HAS(lane[s].here, 2) -> breaks--; lose(2, s); skip }

proctype Fails() {
end:
  do
  FAIL(0)
#if LANES > 1
  FAIL(1)
#endif
  od
}

/* I11: where nothing moves any more, each member of the last view has the result, and no copy of it
 * is left. A view with a dead member waits for the next one, which the model may not have. */
proctype Watches() {
  timeout ->
  d_step {
    n = 0;
    for (i : 0 .. WORKERS - 1) {
      n = n | (IS_MEMBER(i) << i)
    }
    for (i : 0 .. WORKERS - 1) {
      assert(n != views[LAST].members || !HAS(n, i) || worker[i].freed)
    }
    assert(n == 0 || n == views[LAST].members || decided == VIEWS)
  }
}

init {
  d_step {
    views[0].members = EVERYONE;
    views[0].routes = 1;
    for (i : 0 .. LANES - 1) {
      lane[i].up = 1;
      lane[i].formed = 1;
      lane[i].incarnation = 1;
      lane[i].here = EVERYONE
    }
    for (i : 0 .. WORKERS - 1) {
      worker[i].alive = 1;
      worker[i].bound = 1
    }
  }
  atomic {
    for (i : 0 .. WORKERS - 1) {
      run Works(i)
    }
    run Fails();
    run Watches()
  }
}
