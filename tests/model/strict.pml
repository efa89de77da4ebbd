/*
 * A step whose chunks are sums over different sets is done again: PROTOCOL.md, section 11, strict.
 * README.md says what is left out and why, and lists the NO_ macros: each takes one rule away.
 *
 * WORKERS reduce a step of two chunks. Where the two sums have different sets, the step is done
 * again as another generation, under other keys. Ranks have no roles here, and views are nested, so
 * the ranks of a view may be numbered from 0: a set is its size.
 *
 * The network never forgets a frame. So a frame may be late, lost, or come again from a lane that
 * has restarted: elastic.pml shows that lanes and workers make up for what is lost.
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
#ifndef INSIDE
#define INSIDE 0 /* follow workers outside the newest view only while they can act on a member */
#endif

#define CHUNKS 2
#define GENERATIONS EPOCHS /* a view more, and a step is done again once more */
#define MEMBERS(view) ((1 << size[view]) - 1)
#define IN(w, view) (w < size[view])
#define LAST (decided - 1)

byte size[EPOCHS]; /* of each view: the ranks from 0 */
byte decided = 1;

typedef Worker {
  bit alive;
  byte view;
  byte generation;
  bit committed;
  byte held[GENERATIONS * CHUNKS]; /* the set of each result that it has; 0: none */
};
Worker worker[WORKERS];

typedef Cell { /* what was sent for a chunk of a generation in a view */
  byte got;    /* bitmap of contributions */
  byte done;   /* bitmap of ranks that have said that they hold the result */
  byte sum;    /* the set of the result; 0: none */
};
Cell cell[EPOCHS * GENERATIONS * CHUNKS];

byte deaths = DEATHS;
byte settled; /* what a checkpoint was written from: 0: none, or its generation and set */

hidden byte i, j, k, n; /* scratch, no part of a state */

#define W worker[me]
#define G W.generation
#define HELD(w, g, c) worker[w].held[(g) * CHUNKS + (c)]
#define CELL(v, g, c) cell[((v) * GENERATIONS + (g)) * CHUNKS + (c)]
#define COUNTS(w) (worker[w].alive && IN(w, LAST))
#define HAS_ALL(w, g) (HELD(w, g, 0) != 0 && HELD(w, g, 1) != 0)
#define OUTCOME(w) (16 * worker[w].generation + HELD(w, worker[w].generation, 0))

/* I1 and I8: members of the newest view have equal results, and commit the same sums of one set. */
inline all_agree() {
  for (i : 0 .. WORKERS - 1) {
    for (j : 0 .. WORKERS - 1) {
      if
      :: COUNTS(i) && COUNTS(j) ->
         for (k : 0 .. GENERATIONS * CHUNKS - 1) {
           assert(
             worker[i].held[k] == 0 || worker[j].held[k] == 0 ||
             worker[i].held[k] == worker[j].held[k])
         }
         assert(!worker[i].committed || !worker[j].committed || OUTCOME(i) == OUTCOME(j))
      :: else
      fi
    }
    assert(!COUNTS(i) || !worker[i].committed || settled == 0 || settled == OUTCOME(i))
  }
}

/* A step is settled for a worker that has committed, when all of its chunks are stable: each member
 * of the worker's view has said in this view that it holds them. All settle the same sums. */
#define IS_STABLE(v, g, c) ((CELL(v, g, c).done & MEMBERS(v)) == MEMBERS(v))
#ifdef NO_SETTLED
#define IS_SETTLED(w) worker[w].committed
#elif defined(NO_DONE_OF_VIEW) /* what a rank holds counts, wherever the rank has said so */
#define ALL_HAVE(w) \
  (HAS(0, w) && HAS(1, w) && HAS(2, w))
#define HAS(j, w) (!IN(j, worker[w].view) || HAS_ALL(j, worker[w].generation))
#define IS_SETTLED(w) (worker[w].committed && ALL_HAVE(w))
#else
#define IS_SETTLED(w)                                                                            \
  (worker[w].committed && IS_STABLE(worker[w].view, worker[w].generation, 0) &&                  \
   IS_STABLE(worker[w].view, worker[w].generation, 1))
#endif

inline settle() {
#if !INSIDE
  for (i : 0 .. WORKERS - 1) {
    if
    :: worker[i].alive && IS_SETTLED(i) ->
       assert(settled == 0 || settled == OUTCOME(i));
       settled = OUTCOME(i)
    :: else
    fi
  }
#endif
  skip
}

inline silence(w) {
  worker[w].alive = 0;
  worker[w].view = 0;
  worker[w].generation = 0;
  worker[w].committed = 0;
  for (j : 0 .. GENERATIONS * CHUNKS - 1) {
    worker[w].held[j] = 0
  }
}

/* What nobody can read again is no part of a state. */
inline forget() {
  n = EPOCHS;
  for (i : 0 .. WORKERS - 1) {
    if
    :: (INSIDE -> COUNTS(i) : worker[i].alive) && worker[i].view < n -> n = worker[i].view
    :: else
    fi
  }
#if INSIDE
  for (i : 0 .. WORKERS - 1) {
    if
    :: n < EPOCHS && !IN(i, n) -> silence(i)
    :: else
    fi
  }
#endif
  for (i : 0 .. EPOCHS * GENERATIONS * CHUNKS - 1) {
    if
    :: i / (GENERATIONS * CHUNKS) < n ->
       cell[i].got = 0;
       cell[i].done = 0;
       cell[i].sum = 0
    :: else
    fi
  }
}

inline die(w) {
  silence(w);
  forget()
}

/* --- what a worker does --- */

inline install(v) {
  W.view = v;
  for (i : 0 .. GENERATIONS * CHUNKS - 1) {
    if
    :: W.held[i] != 0 -> CELL(v, 0, i).done = CELL(v, 0, i).done | (1 << me)
    :: else
    fi
  }
  settle();
  all_agree();
  forget()
}

inline contribute(c) {
  CELL(W.view, G, c).got = CELL(W.view, G, c).got | (1 << me);
  if
  :: CELL(W.view, G, c).got == MEMBERS(W.view) ->
     CELL(W.view, G, c).got = 0;
     CELL(W.view, G, c).sum = size[W.view]
  :: else
  fi
}

inline upload(g, c) {
  CELL(W.view, g, c).got = 0;
  CELL(W.view, g, c).sum = HELD(me, g, c)
}

inline take(c) {
  HELD(me, G, c) = CELL(W.view, G, c).sum;
  CELL(W.view, G, c).done = CELL(W.view, G, c).done | (1 << me);
  settle();
  all_agree()
}

inline commit() {
  W.committed = 1;
  settle();
  all_agree()
}

inline redo() {
  W.generation++;
  assert(W.generation < GENERATIONS); /* I11: a step is done again only after a view has changed */
#ifdef NO_RESULTS_KEPT
  for (i : 0 .. W.generation * CHUNKS - 1) {
    W.held[i] = 0
  }
#endif
}

#define MAY_INSTALL(v) (W.alive && v < decided && v > W.view && IN(me, v))
#define OPEN(g, c) (CELL(W.view, g, c).sum == 0)
#define MAY_CONTRIBUTE(c)                                                                        \
  (W.alive && HELD(me, G, c) == 0 && OPEN(G, c) && !((CELL(W.view, G, c).got >> me) & 1))
#define MAY_UPLOAD(g, c) (W.alive && g <= G && HELD(me, g, c) != 0 && OPEN(g, c))
#define MAY_TAKE(c) (W.alive && HELD(me, G, c) == 0 && !OPEN(G, c))
#define MAY_COMMIT (W.alive && !W.committed && HAS_ALL(me, G) && HELD(me, G, 0) == HELD(me, G, 1))
#ifdef NO_HOLDS_ALL /* one chunk of an older set is reason enough */
#define IS_OLD(c) (HELD(me, G, c) != 0 && HELD(me, G, c) != size[W.view])
#define MAY_REDO (W.alive && !W.committed && G + 1 < GENERATIONS && (IS_OLD(0) || IS_OLD(1)))
#else
#define MAY_REDO (W.alive && HAS_ALL(me, G) && HELD(me, G, 0) != HELD(me, G, 1))
#endif
#define CHUNK(c)                                                                                 \
  :: d_step { MAY_CONTRIBUTE(c) -> contribute(c); skip }                                         \
  :: d_step { MAY_TAKE(c) -> take(c); skip }

#define GENERATION(g)                                                                            \
  :: d_step { MAY_UPLOAD(g, 0) -> upload(g, 0); skip }                                           \
  :: d_step { MAY_UPLOAD(g, 1) -> upload(g, 1); skip }

proctype Works(byte me) {
end:
  do
  CHUNK(0)
  CHUNK(1)
  :: d_step { MAY_COMMIT -> commit(); skip }
  :: d_step { MAY_REDO -> redo(); skip }
  :: d_step { W.alive && deaths > 0 -> deaths--; die(me); skip }
  :: d_step { MAY_INSTALL(1) -> install(1); skip }
  GENERATION(0)
  GENERATION(1)
#if EPOCHS > 2
  :: d_step { MAY_INSTALL(2) -> install(2); skip }
  GENERATION(2)
#endif
  od
}

#define MAY_DECIDE(members) (decided < EPOCHS && members < size[LAST])
#define DECIDE(members)                                                                          \
  :: d_step {                                                                                    \
       MAY_DECIDE(members) -> size[decided] = members; decided++; forget(); skip }

proctype Registry() {
end:
  do
  DECIDE(1)
  DECIDE(2)
#if WORKERS > 3
  DECIDE(3)
#endif
  od
}

/* I11: where nothing moves any more, each member of the last view has committed. */
proctype Watches() {
  timeout ->
  d_step {
    n = 0;
    for (i : 0 .. WORKERS - 1) {
      n = n | (worker[i].alive << i)
    }
    for (i : 0 .. WORKERS - 1) {
      assert((MEMBERS(LAST) & n) != MEMBERS(LAST) || !COUNTS(i) || worker[i].committed)
    }
  }
}

init {
  d_step {
    size[0] = WORKERS;
    for (i : 0 .. WORKERS - 1) {
      worker[i].alive = 1
    }
  }
  atomic {
    for (i : 0 .. WORKERS - 1) {
      run Works(i)
    }
    run Registry();
    run Watches()
  }
}
