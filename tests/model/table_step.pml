/*
 * Step mode of tables: each step is applied over one set of workers, at every shard or at none.
 * README.md says what is left out and why, and lists the NO_ macros: each takes one rule away.
 *
 * WORKERS enter STEPS steps. Each of two shards has a primary and a backup of three reducers. The
 * primary of shard 0 owns the steps. It chooses a set, the primaries fold the contributions of the
 * set and record the sum at their backups, and the owner commits. A set is a bitmap of ranks.
 *
 * A reducer that was suspected falsely goes on as a primary until it learns of its successor. An
 * owner's SET and COMMIT arrive at any time while the owner lives and has them in mind. All other
 * frames arrive when they are sent: README.md says why this loses no run.
 */

#ifndef WORKERS
#define WORKERS 3
#endif
#ifndef NEEDED
#define NEEDED 2 /* the least size of a set: k of k-of-n */
#endif
#ifndef STEPS
#define STEPS 2
#endif
#ifndef DEATHS
#define DEATHS 0 /* a worker dies */
#endif
#ifndef DOUBTS
#define DOUBTS 0 /* the owner takes another set without a dead worker */
#endif
#ifndef KILLS
#define KILLS 1 /* a reducer dies */
#endif
#ifndef ALARMS
#define ALARMS 0 /* a backup believes a false suspicion of its primary */
#endif

#define REDUCERS 3
#define SHARDS 2
#define ALL_SHARDS 3
#define NOBODY REDUCERS
#define HAS(bitmap, rank) (((bitmap) >> (rank)) & 1)

/* --- what was decided --- */

/* A SET of a step, as a byte: the term of its owner, its generation, its members. 0: none. */
#define MAKE(term, generation, members) (32 * (term) + 8 * (generation) + (members))
#define TERM(set) ((set) / 32)
#define GENERATION(set) (((set) / 8) % 4)
#define MEMBERS(set) ((set) % 8)

typedef Record { /* in the registry, of a shard */
  byte term;
  byte primary;
  byte backup;
};
Record registry[SHARDS];

byte decided[STEPS]; /* the set that any replica has ever applied; 0: none */

/* --- reducers --- */

mtype = {SPARE, BACKUP, PRIMARY};

typedef Replica {
  mtype role; /* as the reducer believes, in its term */
  byte term;
  byte peer;  /* of a primary: its backup */
  bit ready;  /* of a primary: it may answer */
  byte version;
  byte got;    /* of a primary: bitmap of the workers that contributed to step `version` */
  byte record; /* the SET whose sum it has for step `version` */
};
Replica replica[REDUCERS * SHARDS];
#define REPLICA(r, s) replica[(r) * SHARDS + (s)]

typedef Owner { /* the log of shard 0 about steps */
  byte chosen; /* the SET of step `version` */
  byte folded; /* bitmap of shards */
  byte term;   /* of shard 1: the newest that it has heard of */
  byte kept[STEPS]; /* the COMMIT of a step */
};
Owner owner[REDUCERS];
bit up[REDUCERS];

/* --- workers --- */

typedef Worker {
  bit alive;
  byte step;
  byte held; /* bitmap of shards: it has the result of this step */
#ifdef NO_LATE_AFTER_COMMIT
  bit carried; /* it has added the gradient of this step to its next one */
#endif
};
Worker worker[WORKERS];

byte deaths = DEATHS, doubts = DOUBTS, kills = KILLS, alarms = ALARMS;

hidden byte i, j, n; /* scratch, no part of a state */

#define W worker[me]
#define LEADS(r, s) (up[r] && REPLICA(r, s).role == PRIMARY)
#define CHOSEN(o) owner[o].chosen
#define FAULTS (KILLS - kills + ALARMS - alarms)

/* The SETs of a step are ordered by term, then by generation. */
#ifdef NO_SET_TERM
#define IS_NEWER(set, than) ((than) == 0 || GENERATION(set) > GENERATION(than))
#else
#define IS_NEWER(set, than) ((than) == 0 || (set) / 8 > (than) / 8)
#endif

/* A backup takes records of its own term only. */
#define BACKS(b, r, s)                                                                           \
  (up[b] && REPLICA(b, s).role == BACKUP && REPLICA(b, s).term == REPLICA(r, s).term)
#define MAY_LOG(r, s) (REPLICA(r, s).peer == NOBODY || BACKS(REPLICA(r, s).peer, r, s))

/* A primary that may answer has all that any worker has seen: nothing is taken back. */
inline nothing_is_taken_back() {
  for (j : 0 .. SHARDS - 1) {
    n = registry[j].primary;
    if
    :: LEADS(n, j) && REPLICA(n, j).ready ->
       for (i : 0 .. WORKERS - 1) {
         assert(
           !worker[i].alive || REPLICA(n, j).version >= worker[i].step + HAS(worker[i].held, j))
       }
    :: else
    fi
  }
}

/* ======== the owner of the steps ======== */

#define IS_IN_STEP(w, t) (worker[w].step == t)
#define ENTERED(t)                                                                               \
  (IS_IN_STEP(0, t) + 2 * IS_IN_STEP(1, t) + (WORKERS > 2 -> 4 * IS_IN_STEP(WORKERS - 1, t) : 0))
#define ALIVE                                                                                    \
  (worker[0].alive + 2 * worker[1].alive + (WORKERS > 2 -> 4 * worker[WORKERS - 1].alive : 0))
#define SIZE(set) (HAS(set, 0) + HAS(set, 1) + HAS(set, 2))
#define NOW(r) REPLICA(r, 0).version

#define IS_FIRST(r) (CHOSEN(r) == 0)
#define HAS_DEAD(set) (((set) & ALIVE) != (set))
#define IS_NEXT(r, set)                                                                          \
  (HAS_DEAD(MEMBERS(CHOSEN(r))) || (doubts > 0 && set != MEMBERS(CHOSEN(r))))
#define MAY_CHOOSE(r, set)                                                                       \
  (LEADS(r, 0) && REPLICA(r, 0).ready && NOW(r) < STEPS && owner[r].kept[NOW(r)] == 0 &&       \
   SIZE(set) >= NEEDED && (ENTERED(NOW(r)) & (set)) == (set) && !HAS_DEAD(set) &&                \
   (IS_FIRST(r) || IS_NEXT(r, set)))

inline choose(r, set) {
  if
  :: CHOSEN(r) != 0 && !HAS_DEAD(MEMBERS(CHOSEN(r))) -> doubts--
  :: else
  fi;
  n = (TERM(CHOSEN(r)) == REPLICA(r, 0).term && CHOSEN(r) != 0 -> GENERATION(CHOSEN(r)) + 1 : 0);
  assert(n < 4 && REPLICA(r, 0).term < 8);
  owner[r].chosen = MAKE(REPLICA(r, 0).term, n, set);
  owner[r].folded = 0
}

/* FOLDED and COMMIT name the set. */
#ifdef NO_GENERATION
#define IS_OF(record, set) ((record) != 0)
#else
#define IS_OF(record, set) ((record) == (set))
#endif
#ifdef NO_TERM_OF_SHARD
#define IS_CURRENT(r, s, o) true
#else
#define IS_CURRENT(r, s, o) (s == 0 || REPLICA(r, s).term >= owner[o].term)
#endif
#ifdef NO_COMMIT
#define HAS_FOLDED(r, s, o)                                                                      \
  (REPLICA(r, s).version > NOW(o) || IS_OF(REPLICA(r, s).record, CHOSEN(o)))
#else
#define HAS_FOLDED(r, s, o)                                                                      \
  (REPLICA(r, s).version == NOW(o) && IS_OF(REPLICA(r, s).record, CHOSEN(o)))
#endif
#define MAY_REPORT(r, s, o)                                                                      \
  (LEADS(o, 0) && CHOSEN(o) != 0 && !HAS(owner[o].folded, s) && LEADS(r, s) &&                   \
   REPLICA(r, s).ready && IS_CURRENT(r, s, o) && HAS_FOLDED(r, s, o))

inline report(r, s, o) {
  owner[o].folded = owner[o].folded | (1 << s);
  if
  :: s == 1 && REPLICA(r, s).term > owner[o].term -> owner[o].term = REPLICA(r, s).term
  :: else
  fi
}

#define MAY_COMMIT(o)                                                                            \
  (LEADS(o, 0) && owner[o].folded == ALL_SHARDS && owner[o].kept[NOW(o)] == 0 &&                 \
   MAY_LOG_COMMIT(o))
#ifdef NO_COMMIT_LOGGED
#define MAY_LOG_COMMIT(o) true
#else
#define MAY_LOG_COMMIT(o) MAY_LOG(o, 0)
#endif

inline commit(o) {
  owner[o].kept[NOW(o)] = CHOSEN(o);
#ifndef NO_COMMIT_LOGGED
  if
  :: REPLICA(o, 0).peer != NOBODY -> owner[REPLICA(o, 0).peer].kept[NOW(o)] = CHOSEN(o)
  :: else
  fi
#endif
}

/* The owner keeps a COMMIT until the primary and the backup of each shard have applied it. */
#if defined(NO_CONFIRM_OF_BACKUP) || defined(NO_COMMIT_TO_BACKUPS)
#define HAVE_APPLIED(s, t) (REPLICA(registry[s].primary, s).version > t)
#else
#define HAVE_APPLIED(s, t)                                                                       \
  (REPLICA(registry[s].primary, s).version > t &&                                                \
   (registry[s].backup == NOBODY || REPLICA(registry[s].backup, s).version > t))
#endif
inline forget(t) {
  for (i : 0 .. REDUCERS - 1) {
    if
    :: HAVE_APPLIED(0, t) && HAVE_APPLIED(1, t) -> owner[i].kept[t] = 0
    :: else
    fi
  }
}

/* ======== the replicas of a shard ======== */

inline take_contribution(r, s) {
  REPLICA(r, s).got = REPLICA(r, s).got | (1 << me)
}

/* A primary folds a newer set only, and has the sum recorded at its backup. A frame of the next
 * step is parked until this step is applied, at the primary and at the backup. */
#ifdef NO_PARK
#define IS_AT(b, s, t) (REPLICA(b, s).version <= t)
#else
#define IS_AT(b, s, t) (REPLICA(b, s).version == t)
#endif
#define MAY_FOLD(r, s, o)                                                                        \
  (LEADS(o, 0) && CHOSEN(o) != 0 && LEADS(r, s) && REPLICA(r, s).ready &&                        \
   REPLICA(r, s).version == NOW(o) &&                                                   \
   (REPLICA(r, s).got & MEMBERS(CHOSEN(o))) == MEMBERS(CHOSEN(o)) &&                             \
   REPLICA(r, s).record != CHOSEN(o) && IS_NEWER(CHOSEN(o), REPLICA(r, s).record) &&             \
   (REPLICA(r, s).peer == NOBODY ||                                                              \
    (BACKS(REPLICA(r, s).peer, r, s) && IS_AT(REPLICA(r, s).peer, s, NOW(o)))))

inline fold(r, s, o) {
  REPLICA(r, s).record = CHOSEN(o);
  if
  :: REPLICA(r, s).peer != NOBODY -> REPLICA(REPLICA(r, s).peer, s).record = CHOSEN(o)
  :: else
  fi
}

#define HEARS_COMMIT(r, s) (up[r] && REPLICA(r, s).role != SPARE)
#ifdef NO_COMMIT /* shard 1 applies what it has folded */
#define IS_COMMITTED(r, s, o) (s == 1 || HAS_COMMIT(r, s, o))
#else
#define IS_COMMITTED(r, s, o) HAS_COMMIT(r, s, o)
#endif
#define KEPT(r, s, o) owner[o].kept[REPLICA(r, s).version]
#define IS_COMMIT(r, s, o)                                                                       \
  (LEADS(o, 0) && KEPT(r, s, o) != 0 && IS_OF(REPLICA(r, s).record, KEPT(r, s, o)) &&            \
   IS_CURRENT(r, s, o))
#ifdef NO_COMMIT_TO_BACKUPS /* a backup hears of a COMMIT from its primary */
#define HAS_COMMIT(r, s, o)                                                                      \
  (REPLICA(r, s).role == PRIMARY -> IS_COMMIT(r, s, o) :                                         \
   LEADS(registry[s].primary, s) &&                                                              \
   REPLICA(registry[s].primary, s).version > REPLICA(r, s).version)
#else
#define HAS_COMMIT(r, s, o) IS_COMMIT(r, s, o)
#endif
#define MAY_APPLY(r, s, o)                                                                       \
  (HEARS_COMMIT(r, s) && REPLICA(r, s).version < STEPS && REPLICA(r, s).record != 0 &&           \
   IS_COMMITTED(r, s, o))

/* T14: every replica of every shard applies a step over one set. */
inline apply(r, s, set) {
  n = REPLICA(r, s).version;
  assert(decided[n] == 0 || decided[n] == MEMBERS(set));
  decided[n] = MEMBERS(set);
  REPLICA(r, s).version++;
  REPLICA(r, s).record = 0;
  REPLICA(r, s).got = 0;
  if
  :: s == 0 ->
     owner[r].chosen = 0;
     owner[r].folded = 0
  :: else
  fi;
  forget(n)
}

/* ======== faults, and the registry ======== */

inline clear(r, s) {
  REPLICA(r, s).role = SPARE;
  REPLICA(r, s).term = 0;
  REPLICA(r, s).peer = NOBODY;
  REPLICA(r, s).ready = 0;
  REPLICA(r, s).version = 0;
  REPLICA(r, s).got = 0;
  REPLICA(r, s).record = 0;
  if
  :: s == 0 ->
     owner[r].chosen = 0;
     owner[r].folded = 0;
     owner[r].term = 0;
     for (i : 0 .. STEPS - 1) {
       owner[r].kept[i] = 0
     }
  :: else
  fi
}

inline kill(r) {
  kills--;
  clear(r, 0);
  clear(r, 1);
  up[r] = 0
}

#define IS_BACKUP(r, s) (up[r] && REPLICA(r, s).role == BACKUP && registry[s].backup == r)
#define MAY_PROMOTE(r, s) (IS_BACKUP(r, s) && (!up[registry[s].primary] || alarms > 0))

/* A promoted backup asks the owner for the step that it has a record of before it answers. From
 * then on FOLDED and COMMIT of an older term are void: the old primary cannot answer with it. */
inline promote(r, s) {
  if
  :: up[registry[s].primary] -> alarms--
  :: else
  fi;
  registry[s].primary = r;
  registry[s].backup = NOBODY;
  registry[s].term++;
  REPLICA(r, s).role = PRIMARY;
  REPLICA(r, s).term = registry[s].term;
  if
  :: s == 0 -> owner[r].term = registry[1].term
  :: else
  fi;
#ifdef NO_ASKING
  REPLICA(r, s).ready = 1;
  nothing_is_taken_back()
#endif
}

#define OWNER registry[0].primary
#define HAS_OWNER(r, s) (LEADS(OWNER, 0) && (s == 0 || REPLICA(OWNER, 0).ready))
#define MAY_ASK(r, s) (LEADS(r, s) && !REPLICA(r, s).ready && HAS_OWNER(r, s))

inline ask(r, s) {
  if
  :: s == 1 && REPLICA(r, s).term > owner[OWNER].term ->
     owner[OWNER].term = REPLICA(r, s).term;
#ifndef NO_TERM_OF_SHARD
     owner[OWNER].folded = owner[OWNER].folded & 1
#endif
  :: else
  fi;
  if
  :: MAY_APPLY(r, s, OWNER) -> apply(r, s, REPLICA(r, s).record)
  :: else
  fi;
  REPLICA(r, s).ready = 1;
  nothing_is_taken_back()
}

/* A primary drops a dead backup, and fills a spare with all that it has, before the next term. */
#define IS_PRIMARY(r, s) (LEADS(r, s) && registry[s].primary == r && REPLICA(r, s).ready)
#define MAY_DROP(r, s)                                                                           \
  (IS_PRIMARY(r, s) && REPLICA(r, s).peer != NOBODY && !up[REPLICA(r, s).peer])

inline drop(r, s) {
  registry[s].backup = NOBODY;
  registry[s].term++;
  REPLICA(r, s).term = registry[s].term;
  REPLICA(r, s).peer = NOBODY
}

#define MAY_REFILL(r, s, b)                                                                      \
  (IS_PRIMARY(r, s) && r != b && REPLICA(r, s).peer == NOBODY && up[b] &&                        \
   REPLICA(b, s).role == SPARE)

inline refill(r, s, b) {
  registry[s].backup = b;
  registry[s].term++;
  REPLICA(r, s).term = registry[s].term;
  REPLICA(r, s).peer = b;
  REPLICA(b, s).role = BACKUP;
  REPLICA(b, s).term = registry[s].term;
  REPLICA(b, s).version = REPLICA(r, s).version;
#ifndef NO_RECORD_IN_REFILL
  REPLICA(b, s).record = REPLICA(r, s).record;
#endif
  if
  :: s == 0 ->
#ifndef NO_LOG_IN_REFILL
     for (i : 0 .. STEPS - 1) {
       owner[b].kept[i] = owner[r].kept[i]
     }
#endif
     skip
  :: else
  fi
}

#define HAS_SUCCESSOR(r, s) (LEADS(r, s) && registry[s].primary != r)

#define OF_OWNER(r, s, o)                                                                        \
  :: d_step { MAY_FOLD(r, s, o) -> fold(r, s, o); skip }                                         \
  :: d_step { MAY_REPORT(r, s, o) -> report(r, s, o); skip }                                     \
  :: d_step { MAY_APPLY(r, s, o) -> apply(r, s, REPLICA(r, s).record); skip }

#define SHARD(r, s)                                                                              \
  OF_OWNER(r, s, 0)                                                                              \
  OF_OWNER(r, s, 1)                                                                              \
  OF_OWNER(r, s, 2)                                                                              \
  :: d_step { MAY_PROMOTE(r, s) -> promote(r, s); skip }                                         \
  :: d_step { MAY_ASK(r, s) -> ask(r, s); skip }                                                 \
  :: d_step { MAY_DROP(r, s) -> drop(r, s); skip }                                               \
  :: d_step { MAY_REFILL(r, s, 0) -> refill(r, s, 0); skip }                                     \
  :: d_step { MAY_REFILL(r, s, 1) -> refill(r, s, 1); skip }                                     \
  :: d_step { MAY_REFILL(r, s, 2) -> refill(r, s, 2); skip }                                     \
  :: d_step { HAS_SUCCESSOR(r, s) -> clear(r, s); skip }

#define REDUCER(r)                                                                               \
  SHARD(r, 0)                                                                                    \
  SHARD(r, 1)                                                                                    \
  :: d_step { MAY_CHOOSE(r, 3) -> choose(r, 3); skip }                                           \
  :: d_step { MAY_CHOOSE(r, 5) -> choose(r, 5); skip }                                           \
  :: d_step { MAY_CHOOSE(r, 6) -> choose(r, 6); skip }                                           \
  :: d_step { MAY_CHOOSE(r, 7) -> choose(r, 7); skip }                                           \
  :: d_step { MAY_COMMIT(r) -> commit(r); skip }                                                 \
  :: d_step { kills > 0 && up[r] -> kill(r); skip }

proctype Serves() {
end:
  do
  REDUCER(0)
  REDUCER(1)
  REDUCER(2)
  od
}

/* ======== the worker ======== */

/* A worker of a set that some owner has in mind sends its gradient. It keeps the gradient, and
 * sends it again to a new primary, until it has the results. */
#define IS_ASKED(o) (LEADS(o, 0) && NOW(o) == W.step && HAS(MEMBERS(CHOSEN(o)), me))
#define MAY_CONTRIBUTE(r, s)                                                                     \
  (W.alive && W.step < STEPS && LEADS(r, s) && REPLICA(r, s).version == W.step &&                \
   !HAS(REPLICA(r, s).got, me) && (IS_ASKED(0) || IS_ASKED(1) || IS_ASKED(2)))

#ifdef NO_LATE_AFTER_COMMIT
#define MAY_CARRY(o)                                                                             \
  (W.alive && W.step < STEPS && LEADS(o, 0) && NOW(o) == W.step && CHOSEN(o) != 0 &&             \
   !HAS(MEMBERS(CHOSEN(o)), me) && !W.carried)
#endif

#define MAY_TAKE(r, s)                                                                           \
  (W.alive && W.step < STEPS && LEADS(r, s) && REPLICA(r, s).ready &&                            \
   REPLICA(r, s).version > W.step && !HAS(W.held, s))

inline take_result(s) {
#ifdef NO_LATE_AFTER_COMMIT
  assert(!W.carried || !HAS(decided[W.step], me)); /* T11: its gradient is applied once */
  W.carried = 0;
#endif
  W.held = W.held | (1 << s);
  if
  :: W.held == ALL_SHARDS ->
     W.held = 0;
     W.step++
  :: else
  fi
}

#ifdef NO_LATE_AFTER_COMMIT
#define CARRY(r)                                                                                 \
  :: d_step { MAY_CARRY(r) -> W.carried = 1; skip }
#else
#define CARRY(r)
#endif

#define OF_SHARD(r, s)                                                                           \
  :: d_step { MAY_CONTRIBUTE(r, s) -> take_contribution(r, s); skip }                            \
  :: d_step { MAY_TAKE(r, s) -> take_result(s); nothing_is_taken_back(); skip }

#define FROM(r)                                                                                  \
  OF_SHARD(r, 0)                                                                                 \
  OF_SHARD(r, 1)                                                                                 \
  CARRY(r)

proctype Works(byte me) {
end:
  do
  FROM(0)
  FROM(1)
  FROM(2)
  :: d_step { W.alive && deaths > 0 -> deaths--; W.alive = 0; W.held = 0; W.step = 0; skip }
  od
}

/* Where nothing moves any more, each live worker has all results. Or the state of a shard is lost,
 * which takes two faults; or too few workers are left. */
#define IS_LOST(s)                                                                               \
  (!up[registry[s].primary] && (registry[s].backup == NOBODY || !up[registry[s].backup]))

proctype Watches() {
  timeout ->
  d_step {
    if
    :: IS_LOST(0) || IS_LOST(1) -> assert(FAULTS >= 2)
    :: else ->
       for (i : 0 .. WORKERS - 1) {
         assert(!worker[i].alive || worker[i].step == STEPS || SIZE(ALIVE) < NEEDED)
       }
    fi
  }
}

init {
  d_step {
    for (i : 0 .. REDUCERS - 1) {
      up[i] = 1;
      for (j : 0 .. SHARDS - 1) {
        REPLICA(i, j).role = (i == j -> PRIMARY : (i == 1 - j -> BACKUP : SPARE));
        REPLICA(i, j).peer = (i == j -> 1 - j : NOBODY);
        REPLICA(i, j).ready = (i == j)
      }
    }
    for (j : 0 .. SHARDS - 1) {
      registry[j].primary = j;
      registry[j].backup = 1 - j
    }
    for (i : 0 .. WORKERS - 1) {
      worker[i].alive = 1
    }
  }
  atomic {
    for (i : 0 .. WORKERS - 1) {
      run Works(i)
    }
    run Serves();
    run Watches()
  }
}
