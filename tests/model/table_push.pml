/*
 * Pushes to a table, asynchronous: each is applied once, and no receipt is taken back. README.md
 * says what is left out and why, and lists the NO_ macros: each of them takes one rule away.
 *
 * WORKERS push UPDATES each to one shard of three reducers: a primary, its backup and a spare. The
 * registry makes terms, each by a compare-and-set. A log holds what the primary took, in order; it
 * is the state of the shard, and its length the version. A backup has a copy of the log.
 *
 * The network never forgets a PUSH: it may arrive at any reducer at any later time, and again. What
 * a reducer learns of the registry may be late, also the answer to its own compare-and-set.
 */

#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef UPDATES
#define UPDATES 2
#endif
#ifndef DEATHS
#define DEATHS 0 /* a worker dies, and its incarnation is sealed */
#endif
#ifndef DROPS
#define DROPS 0 /* an update is too stale and is dropped */
#endif
#ifndef RESTORES
#define RESTORES 0 /* the table is loaded from a checkpoint */
#endif
#ifndef KILLS
#define KILLS 1 /* a reducer dies; it starts again, empty, sooner or later */
#endif
#ifndef ALARMS
#define ALARMS 0 /* a reducer believes a false suspicion of the other one of its term */
#endif

#define REDUCERS 3
#define NOBODY REDUCERS
#define GONE (REDUCERS + 1) /* an incarnation that has ended */
#define TERMS (1 + 2 * (KILLS + ALARMS + RESTORES))
#define LENGTH (WORKERS * UPDATES + DEATHS + 1)

/* --- entries of a log --- */

#define ERA 16    /* + after the restore */
#define DROPPED 32 /* + dropped */
#define SEAL 64   /* + the rank */
#define BODY(w, u) (1 + (w) * UPDATES + (u))
#define BODY_OF(entry) ((entry) % 16)
#define IS_UPDATE(entry) ((entry) != 0 && (entry) < SEAL)
#define IS_OF(entry, w) (IS_UPDATE(entry) && (BODY_OF(entry) - 1) / UPDATES == w)
#define NUMBER(entry) ((BODY_OF(entry) - 1) % UPDATES)
#define ERA_OF(entry) (((entry) / ERA) % 2)

/* --- the registry: who leads in a term --- */

typedef Record {
  byte primary;
  byte backup;
  bit era; /* after the restore */
};
Record records[TERMS];
byte newest; /* the present term */

/* --- reducers --- */

typedef Reducer {
  bit up;
  byte term; /* that it acts in */
  byte length;
  byte log[LENGTH];
  byte applied; /* of a primary: the first so many entries */
  byte joining; /* of a primary: the backup of the term that it has asked for */
#ifdef NO_DROP_BY_CAS
  bit alone;
#endif
#ifdef NO_SEAL_RECORD
  byte sealed;
#endif
};
Reducer reducer[REDUCERS];

/* --- workers --- */

typedef Worker {
  bit alive;
  bit era;
  byte next;     /* updates pushed */
  byte old;      /* of them, before the restore */
  byte start;    /* the first one after the restore */
  byte receipts; /* bitmap */
  byte term;     /* the newest that it has heard of */
  byte seen;     /* the version that it has pulled */
  byte told;     /* 1 + the updates of its ended incarnation that are in the table; 0: not told */
};
Worker worker[WORKERS];

byte shown; /* the longest log that a receipt or a pull has shown */
byte tape[LENGTH];

byte deaths = DEATHS, drops = DROPS, restores = RESTORES, kills = KILLS, alarms = ALARMS;

hidden byte i, j, n, m; /* scratch, no part of a state */

#define R(r) reducer[r]
#define W(w) worker[w]
#define RECORD(r) records[R(r).term]
#define LEADS(r) (R(r).up && RECORD(r).primary == r)
#define FAULTS (KILLS - kills + ALARMS - alarms)
#define LEADER records[newest].primary

/* T11: a log has each update once. The ledger of an ended incarnation stays true. */
inline each_once(r) {
  for (i : 0 .. LENGTH - 1) {
    for (j : 0 .. i) {
      assert(
        i == j || !IS_UPDATE(R(r).log[i]) || !IS_UPDATE(R(r).log[j]) ||
        BODY_OF(R(r).log[i]) != BODY_OF(R(r).log[j]))
    }
  }
}

inline count(r, w) {
  n = 0;
  for (i : 0 .. LENGTH - 1) {
    n = n + (IS_OF(R(r).log[i], w) && (!W(w).alive || NUMBER(R(r).log[i]) < W(w).old))
  }
}

inline ledger_is_true() {
  for (j : 0 .. WORKERS - 1) {
    if
    :: LEADER < REDUCERS && W(j).told != 0 ->
       count(LEADER, j);
       assert(n + 1 == W(j).told)
    :: else
    fi
  }
}

/* T12: the leader of the newest term has all that any receipt or pull has shown. */
inline nothing_is_taken_back() {
  if
  :: LEADER < REDUCERS ->
     for (i : 0 .. LENGTH - 1) {
       assert(i >= shown || R(LEADER).log[i] == tape[i])
     }
  :: else
  fi
}

inline show_log(r, version) {
  if
  :: RECORD(r).era == records[newest].era ->
     for (i : 0 .. LENGTH - 1) {
       if
       :: i < version ->
          assert(i >= shown || tape[i] == R(r).log[i]);
          tape[i] = R(r).log[i]
       :: else
       fi
     }
     shown = (version > shown -> version : shown);
     nothing_is_taken_back()
  :: else
  fi
}

/* ======== the primary ======== */

inline append(r, entry) {
  assert(R(r).length < LENGTH);
  R(r).log[R(r).length] = entry;
  R(r).length++;
  each_once(r);
  ledger_is_true()
}

/* What is in the first `below` entries of a log. */
#define HAS(bitmap, rank) (((bitmap) >> (rank)) & 1)
#define AT(r, i, below) (i < LENGTH && i < below -> R(r).log[i] : 0)
#define IS(r, i, below, entry) (AT(r, i, below) < SEAL && AT(r, i, below) % DROPPED == entry)
#define IS_IN(r, below, entry)                                                                   \
  (IS(r, 0, below, entry) || IS(r, 1, below, entry) || IS(r, 2, below, entry) ||                 \
   IS(r, 3, below, entry) || IS(r, 4, below, entry) || IS(r, 5, below, entry))
#define HAS_SEAL(r, below, w)                                                                    \
  (AT(r, 0, below) == SEAL + w || AT(r, 1, below) == SEAL + w || AT(r, 2, below) == SEAL + w ||  \
   AT(r, 3, below) == SEAL + w || AT(r, 4, below) == SEAL + w || AT(r, 5, below) == SEAL + w)
#define HAS_PUSH(r, below, w, u, e) IS_IN(r, below, (BODY(w, u) + ERA * (e)))

/* Once: a repeat changes nothing, a gap is refused. So is an incarnation that has ended. */
#define IS_REPEAT(r, w, u, e) HAS_PUSH(r, R(r).length, w, u, e)
#define IS_GAP(r, w, u, e)                                                                       \
  (u != (e == 1 -> W(w).start : 0) && !HAS_PUSH(r, R(r).length, w, (u - 1), e))
#ifdef NO_SEQ
#define IS_NEXT(r, w, u, e) true
#elif defined(NO_GAP) /* a repeat is all that is not above the mark */
#define IS_NEXT(r, w, u, e)                                                                      \
  (!IS_REPEAT(r, w, u, e) && (u == UPDATES - 1 || !IS_REPEAT(r, w, (u + 1), e)))
#else
#define IS_NEXT(r, w, u, e) (!IS_REPEAT(r, w, u, e) && !IS_GAP(r, w, u, e))
#endif
#ifdef NO_SEAL_RECORD
#define IS_SEALED(r, w) HAS(R(r).sealed, w)
#elif DEATHS
#define IS_SEALED(r, w) HAS_SEAL(r, R(r).length, w)
#else
#define IS_SEALED(r, w) false
#endif

inline take_push(r, w, u, e, outcome) {
  drops = drops - (outcome != 0);
  append(r, BODY(w, u) + ERA * e + outcome)
}

#define WAS_PUSHED(w, u, e)                                                                      \
  (e == 0 -> u < (W(w).era == 0 -> W(w).next : W(w).old) :                                       \
   W(w).era == 1 && u >= W(w).start && u < W(w).next)
#ifdef NO_SEAL_AT_RESTORE
#define IS_OPEN(r, e) (e <= RECORD(r).era)
#else
#define IS_OPEN(r, e) (e == RECORD(r).era)
#endif
#define MAY_TAKE(r, w, u, e)                                                                     \
  (LEADS(r) && WAS_PUSHED(w, u, e) && IS_OPEN(r, e) && R(r).length < LENGTH &&                   \
   !IS_SEALED(r, w) && IS_NEXT(r, w, u, e))

/* What the primary waits for: its backup, and one that the registry may have accepted already. */
#ifdef NO_DROP_BY_CAS
#define BACKUP(r) (R(r).alone -> NOBODY : RECORD(r).backup)
#else
#define BACKUP(r) RECORD(r).backup
#endif
#ifdef NO_TERM_CHECK
#define TAKES_RECORDS(b, r) (R(b).term >= R(r).term)
#else
#define TAKES_RECORDS(b, r) (R(b).term == R(r).term)
#endif
#define HAS_NEXT(b, r)                                                                           \
  ((b) == NOBODY ||                                                                              \
   ((b) < REDUCERS && TAKES_RECORDS(b, r) && R(b).length > R(r).applied))
#define MAY_APPLY(r)                                                                             \
  (LEADS(r) && R(r).applied < R(r).length && HAS_NEXT(BACKUP(r), r) && HAS_NEXT(R(r).joining, r))

#define MAY_RECORD(r, b)                                                                         \
  (LEADS(r) && r != b && R(b).up && TAKES_RECORDS(b, r) && R(b).length < R(r).length &&          \
   (BACKUP(r) == NOBODY || BACKUP(r) == b))

inline take_record(r, b) {
  R(b).log[R(b).length] = R(r).log[R(b).length];
  R(b).length++;
  each_once(b)
}

/* ======== receipts and pulls ======== */

/* A receipt says that an update is durable, and what became of it. */
#ifdef NO_RECEIPT_AFTER_BACKUP
#define ANSWERED(r) R(r).length
#else
#define ANSWERED(r) R(r).applied
#endif
#ifdef NO_APPLY_AFTER_BACKUP
#define VISIBLE(r) R(r).length
#else
#define VISIBLE(r) R(r).applied
#endif
/* A worker takes no answer of an older term. */
#ifdef NO_NEWER_TERM
#define MAY_HEAR(r, w) (LEADS(r) && W(w).alive && W(w).era == RECORD(r).era)
#else
#define MAY_HEAR(r, w)                                                                           \
  (LEADS(r) && W(w).alive && W(w).era == RECORD(r).era && R(r).term >= W(w).term)
#endif

inline find(r, w, u) {
  m = LENGTH;
  for (i : 0 .. LENGTH - 1) {
    if
    :: R(r).log[i] % DROPPED == BODY(w, u) + ERA * W(w).era && IS_UPDATE(R(r).log[i]) -> m = i
    :: else
    fi
  }
}

#ifdef NO_GAP
#define IS_BELOW_MARK(r, w, u) (u < UPDATES - 1 && HAS_PUSH(r, ANSWERED(r), w, (u + 1), W(w).era))
#else
#define IS_BELOW_MARK(r, w, u) false
#endif

#define MAY_ACKNOWLEDGE(r, w, u)                                                                 \
  (MAY_HEAR(r, w) && u < W(w).next && !HAS(W(w).receipts, u) &&                                  \
   (HAS_PUSH(r, ANSWERED(r), w, u, W(w).era) || IS_BELOW_MARK(r, w, u)))

inline acknowledge(r, w, u) {
  find(r, w, u);
  assert(m < LENGTH); /* T11: what has a receipt was taken */
#ifdef NO_OUTCOME
  assert(R(r).log[m] < DROPPED); /* T11: a dropped update is never called applied */
#endif
  W(w).receipts = W(w).receipts | (1 << u);
  if
  :: w == 0 && R(r).term > W(0).term -> W(0).term = R(r).term /* the one that pulls */
  :: else
  fi;
  show_log(r, m + 1)
}

#define MAY_PULL(r, w)                                                                           \
  (MAY_HEAR(r, w) && (VISIBLE(r) != W(w).seen || R(r).term != W(w).term))

inline pull(r, w) {
  assert(VISIBLE(r) >= W(w).seen); /* T13: what a worker reads never goes back */
  W(w).seen = VISIBLE(r);
  W(w).term = R(r).term;
  show_log(r, VISIBLE(r))
}

/* ======== the end of an incarnation ======== */

/* The seal is a record. The ledger is told what is in the table once the backup has the seal. */
#define MAY_SEAL(r, w)                                                                           \
  (LEADS(r) && !W(w).alive && W(w).told == 0 && R(r).length < LENGTH && !IS_SEALED(r, w))

inline seal(r, w) {
#ifdef NO_SEAL_RECORD
  R(r).sealed = R(r).sealed | (1 << w)
#else
  append(r, SEAL + w)
#endif
}

#ifdef NO_SEAL
#define MAY_TELL(r, w) (LEADS(r) && !W(w).alive && W(w).told == 0 && R(r).applied == R(r).length)
#else
#define MAY_TELL(r, w)                                                                           \
  (LEADS(r) && !W(w).alive && W(w).told == 0 && R(r).applied == R(r).length && IS_SEALED(r, w))
#endif

inline tell(r, w) {
  count(r, w);
  W(w).told = n + 1;
  show_log(r, R(r).applied);
  ledger_is_true()
}

/* A table is loaded from an old copy of the log. Its workers are other incarnations then: they
 * discard what has no receipt, and say so. */
#define MAY_RESTORE(r, version)                                                                  \
  (restores > 0 && R(r).up && LEADER < REDUCERS && LEADER != r && LEADS(LEADER) &&               \
   R(LEADER).term == newest && R(LEADER).applied >= version)

inline restore(r, version) {
  restores--;
  for (i : 0 .. LENGTH - 1) {
    R(r).log[i] = (i < version -> R(LEADER).log[i] : 0)
  }
  R(r).length = version;
  R(r).applied = version;
  R(r).joining = NOBODY;
  decide(r, NOBODY, 1);
  R(r).term = newest;
  shown = version;
  for (i : 0 .. LENGTH - 1) {
    tape[i] = R(r).log[i]
  }
}

#define MAY_BEGIN(w) (W(w).alive && W(w).era < records[newest].era && LEADER < REDUCERS)

inline begin(w) {
  W(w).old = W(w).next;
#ifdef NO_DISCARD
  n = 0;
  do
  :: n < W(w).next && HAS(W(w).receipts, n) -> n++
  :: else -> break
  od;
  W(w).start = n;
  W(w).next = n;
#else
  W(w).start = W(w).next;
#endif
  W(w).era = 1;
  W(w).term = (w == 0 -> newest : 0);
  W(w).seen = 0;
#ifndef NO_DISCARD
  count(LEADER, w);
  W(w).told = n + 1
#endif
}

/* ======== terms ======== */

inline decide(first, second, when) {
  assert(newest + 1 < TERMS);
  newest++;
  records[newest].primary = first;
  records[newest].backup = second;
  records[newest].era = when
}

#ifdef NO_CAS
#define MAY_CAS(r) (newest + 1 < TERMS)
#else
#define MAY_CAS(r) (R(r).term == newest)
#endif
#define SUSPECTS(who) ((who) == GONE || ((who) < REDUCERS && alarms > 0))

inline suspect(who) {
  alarms = alarms - (who < REDUCERS)
}

#define MAY_PROMOTE(r)                                                                           \
  (R(r).up && MAY_CAS(r) && RECORD(r).backup == r && SUSPECTS(RECORD(r).primary))
#ifdef NO_DROP_BY_CAS
#define MAY_DROP(r) (LEADS(r) && !R(r).alone && SUSPECTS(RECORD(r).backup))
#else
#define MAY_DROP(r) (LEADS(r) && MAY_CAS(r) && SUSPECTS(RECORD(r).backup))
#endif

inline promote(r) {
  suspect(RECORD(r).primary);
  decide(r, NOBODY, RECORD(r).era);
  nothing_is_taken_back();
  ledger_is_true()
}

inline drop(r) {
  suspect(RECORD(r).backup);
#ifdef NO_DROP_BY_CAS
  R(r).alone = 1
#else
  decide(r, NOBODY, RECORD(r).era)
#endif
}

/* A spare is the next backup once it has all records. The primary waits for it from then on, since
 * the registry may have accepted it. */
#ifdef NO_FULL_COPY
#define IS_FULL(r, b) true
#else
#define IS_FULL(r, b) (R(b).length == R(r).length)
#endif
#define MAY_REFILL(r, b)                                                                         \
  (LEADS(r) && MAY_CAS(r) && RECORD(r).backup == NOBODY && R(r).joining == NOBODY && r != b &&   \
   R(b).up && R(b).term == R(r).term && IS_FULL(r, b) && newest + 1 < TERMS)

inline refill(r, b) {
#ifndef NO_WAIT_FOR_NEXT
  R(r).joining = b;
#endif
  decide(r, b, RECORD(r).era);
  nothing_is_taken_back()
}

/* A reducer reads the registry. One that has no part in the term is a spare, and begins anew. */
#define HAS_PART(r) (LEADER == r || records[newest].backup == r)
#define MAY_LEARN(r) (R(r).up && R(r).term < newest)

inline begin_anew(r) {
#ifndef NO_FRESH_COPY
  R(r).length = 0;
  for (i : 0 .. LENGTH - 1) {
    R(r).log[i] = 0
  }
#endif
  R(r).applied = 0
}

inline learn(r) {
  if
  :: LEADER == r && R(r).joining == NOBODY && records[R(r).term].primary != r ->
     R(r).applied = R(r).length
  :: LEADER != r && HAS_PART(r) -> R(r).applied = 0
  :: !HAS_PART(r) -> begin_anew(r)
  :: else
  fi;
  R(r).joining = NOBODY;
  R(r).term = newest
}

inline kill(r) {
  kills--;
  R(r).up = 0;
  R(r).term = 0;
  R(r).length = 0;
  R(r).applied = 0;
  R(r).joining = NOBODY;
  for (i : 0 .. LENGTH - 1) {
    R(r).log[i] = 0
  }
#ifdef NO_DROP_BY_CAS
  R(r).alone = 0;
#endif
#ifdef NO_SEAL_RECORD
  R(r).sealed = 0;
#endif
#ifndef NO_INCARNATION
  for (i : 0 .. TERMS - 1) {
    records[i].primary = (records[i].primary == r -> GONE : records[i].primary);
    records[i].backup = (records[i].backup == r -> GONE : records[i].backup)
  }
#endif
  for (i : 0 .. REDUCERS - 1) {
    R(i).joining = (R(i).joining == r -> GONE : R(i).joining)
  }
}

/* ======== processes ======== */

#define UPDATE(r, w, u)                                                                          \
  :: d_step { MAY_TAKE(r, w, u, 0) -> take_push(r, w, u, 0, 0); skip }                           \
  OF_DROPS(r, w, u)                                                                              \
  OF_ERA(r, w, u)                                                                                \
  :: d_step { MAY_ACKNOWLEDGE(r, w, u) -> acknowledge(r, w, u); skip }
#if DROPS
#define OF_DROPS(r, w, u)                                                                        \
  :: d_step { drops > 0 && MAY_TAKE(r, w, u, 0) -> take_push(r, w, u, 0, DROPPED); skip }
#else
#define OF_DROPS(r, w, u)
#endif
#if RESTORES
#define OF_ERA(r, w, u)                                                                          \
  :: d_step { MAY_TAKE(r, w, u, 1) -> take_push(r, w, u, 1, 0); skip }
#define RESTORE(r)                                                                               \
  :: d_step { MAY_RESTORE(r, 0) -> restore(r, 0); skip }                                         \
  :: d_step { MAY_RESTORE(r, 1) -> restore(r, 1); skip }                                         \
  :: d_step { MAY_RESTORE(r, 2) -> restore(r, 2); skip }
#else
#define OF_ERA(r, w, u)
#define RESTORE(r)
#endif
#if DEATHS
#ifdef NO_SEAL
#define END(r, w)                                                                                \
  :: d_step { MAY_TELL(r, w) -> tell(r, w); skip }
#else
#define END(r, w)                                                                                \
  :: d_step { MAY_SEAL(r, w) -> seal(r, w); skip }                                               \
  :: d_step { MAY_TELL(r, w) -> tell(r, w); skip }
#endif
#else
#define END(r, w)
#endif
#if UPDATES > 1
#define PUSHES(r, w)                                                                             \
  UPDATE(r, w, 0)                                                                                \
  UPDATE(r, w, 1)
#else
#define PUSHES(r, w)                                                                             \
  UPDATE(r, w, 0)
#endif
#define OF_WORKER(r, w)                                                                          \
  PUSHES(r, w)                                                                                   \
  END(r, w)

#define REDUCER(r)                                                                               \
  OF_WORKER(r, 0)                                                                                \
  OF_WORKER(r, 1)                                                                                \
  THIRD(r)                                                                                       \
  :: d_step { MAY_PULL(r, 0) -> pull(r, 0); skip }                                               \
  :: d_step { MAY_RECORD(r, 0) -> take_record(r, 0); skip }                                      \
  :: d_step { MAY_RECORD(r, 1) -> take_record(r, 1); skip }                                      \
  :: d_step { MAY_RECORD(r, 2) -> take_record(r, 2); skip }                                      \
  :: d_step { MAY_APPLY(r) -> R(r).applied++; skip }                                             \
  :: d_step { MAY_PROMOTE(r) -> promote(r); skip }                                               \
  :: d_step { MAY_DROP(r) -> drop(r); skip }                                                     \
  :: d_step { MAY_REFILL(r, 0) -> refill(r, 0); skip }                                           \
  :: d_step { MAY_REFILL(r, 1) -> refill(r, 1); skip }                                           \
  :: d_step { MAY_REFILL(r, 2) -> refill(r, 2); skip }                                           \
  :: d_step { MAY_LEARN(r) -> learn(r); skip }                                                   \
  RESTORE(r)                                                                                     \
  :: d_step { kills > 0 && R(r).up -> kill(r); skip }                                            \
  :: d_step { !R(r).up -> R(r).up = 1; skip }
#if WORKERS > 2
#define THIRD(r) OF_WORKER(r, 2)
#else
#define THIRD(r)
#endif

proctype Serves() {
end:
  do
  REDUCER(0)
  REDUCER(1)
  REDUCER(2)
  od
}

proctype Works(byte me) {
end:
  do
#if RESTORES
  :: d_step { W(me).alive && W(me).next < UPDATES -> W(me).next++; skip }
#endif
  :: d_step { MAY_BEGIN(me) -> begin(me); skip }
  :: d_step { W(me).alive && deaths > 0 -> deaths--; W(me).alive = 0; skip }
  od
}

/* Where nothing moves any more, each live worker has its receipts, and each dead one is sealed. Or
 * the state is lost, which takes two faults. */
#define IS_LOST (LEADER == GONE && (records[newest].backup >= REDUCERS))

proctype Watches() {
  timeout ->
  d_step {
    if
    :: IS_LOST -> assert(FAULTS >= 2)
    :: else ->
       for (i : 0 .. WORKERS - 1) {
         assert(W(i).alive || W(i).told != 0);
         for (j : W(i).start .. UPDATES - 1) {
           assert(!W(i).alive || HAS(W(i).receipts, j))
         }
       }
    fi
  }
}

init {
  d_step {
    records[0].primary = 0;
    records[0].backup = 1;
    for (i : 0 .. REDUCERS - 1) {
      R(i).up = 1;
      R(i).joining = NOBODY
    }
    for (i : 0 .. WORKERS - 1) {
      W(i).alive = 1;
      W(i).next = (RESTORES -> 0 : UPDATES) /* a PUSH that never arrives was not sent */
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
