/*
 * The registry loses its file while views change: PROTOCOL.md, section 11. README.md says what is
 * left out and why, and lists the NO_ macros: each of them takes one rule away.
 *
 * A document is a view: an epoch and its members. A member may install a view at any time after the
 * compare-and-set, from the registry or from a lane. WORKERS reduce one chunk over a network that
 * never forgets a frame. A frame names its epoch and not its view. A set is a bitmap of ranks.
 */

#ifndef WORKERS
#define WORKERS 3
#endif
#ifndef VIEWS
#define VIEWS 3 /* documents that are made, the first included */
#endif
#ifndef LOSSES
#define LOSSES 1 /* the registry starts again without its file */
#endif
#ifndef DEATHS
#define DEATHS 1 /* a worker dies, and does not come back */
#endif

#ifdef NO_JUMP
#define JUMP 1
#else
#define JUMP VIEWS /* more than the registry ever counted without a loss */
#endif
#define EPOCHS (VIEWS + LOSSES * JUMP)
#define NONE VIEWS /* no document */
#define EVERYONE ((1 << WORKERS) - 1)
#define HAS(bitmap, rank) (((bitmap) >> (rank)) & 1)

/* --- views that were decided; a frame and a record name the epoch --- */

typedef View {
  byte epoch;
  byte members;
  bit installed; /* by any worker, at any time */
};
View views[VIEWS];
byte decided = 1;

/* --- the registry --- */

byte incarnation;
byte document; /* an index of views, or NONE */
#ifdef NO_INCARNATION
byte version = 1;
#endif
byte lease[WORKERS]; /* 0: none, or 1 + the view of the rank; the lease has its promise, too */

#ifdef NO_INCARNATION
typedef Request { /* a compare-and-set on its way, perhaps into the next incarnation */
  byte members; /* 0: none */
  byte epoch;
  byte version;
};
#endif

/* --- workers --- */

typedef Worker {
  bit alive;
  byte view;
  byte floor; /* it has promised to install no older epoch */
  byte set;   /* the result that it holds; 0: none */
#ifdef NO_INCARNATION
  Request request;
#endif
};
Worker worker[WORKERS];

typedef Frames { /* of one epoch */
  byte got;  /* bitmap of ranks that contributed */
  byte sums; /* bitmap of sets: the results that were ever sent */
};
Frames frames[EPOCHS];

byte losses = LOSSES, deaths = DEATHS;
bit failed; /* the job has ended, with an error */

hidden byte i, j, n; /* scratch, no part of a state */

#define W worker[me]
#define EPOCH(v) views[v].epoch
#define MEMBERS(v) views[v].members
#define F frames[EPOCH(W.view)]

/* I1: all results that live members of the newest installed view hold are equal. */
inline all_agree() {
  n = 0;
  for (i : 0 .. decided - 1) {
    if
    :: views[i].installed && EPOCH(i) > n -> n = EPOCH(i)
    :: else
    fi
  }
  for (i : 0 .. decided - 1) {
    if
    :: views[i].installed && EPOCH(i) == n -> agree(i)
    :: else
    fi
  }
}

inline agree(v) {
  n = 0;
  for (j : 0 .. WORKERS - 1) {
    if
    :: worker[j].alive && HAS(MEMBERS(v), j) && worker[j].set != 0 ->
       assert(n == 0 || n == worker[j].set);
       n = worker[j].set
    :: else
    fi
  }
  n = EPOCH(v)
}

/* --- the chunk: as in elastic.pml, with lanes that forget nothing --- */

#define MAY_CONTRIBUTE (W.alive && W.set == 0 && !HAS(F.got, me))
#define MAY_UPLOAD (W.alive && W.set != 0 && !HAS(F.sums, W.set))
#define MAY_SUM(v)                                                                               \
  (v < decided && views[v].installed && !HAS(frames[EPOCH(v)].sums, MEMBERS(v)) &&               \
   (frames[EPOCH(v)].got & MEMBERS(v)) == MEMBERS(v))
#define MAY_TAKE(sum) (W.alive && W.set == 0 && HAS(F.sums, sum))

inline take(sum) {
  W.set = sum;
  all_agree()
}

/* --- views --- */

#ifdef NO_PROMISE
#define KEEPS_PROMISE(v) true
#else
#define KEEPS_PROMISE(v) (EPOCH(v) >= W.floor)
#endif
#define MAY_INSTALL(v)                                                                           \
  (W.alive && v < decided && HAS(MEMBERS(v), me) && EPOCH(v) > EPOCH(W.view) &&                  \
   KEEPS_PROMISE(v))

inline install(v) {
  W.view = v;
  views[v].installed = 1;
  all_agree()
}

/* A worker that finds another incarnation registers with its view. It promises to install nothing
 * that the registry may have decided before the loss. */
#define MAY_REGISTER (W.alive && incarnation > 0 && document == NONE && lease[me] == 0)

inline register() {
  lease[me] = 1 + W.view;
#ifdef NO_OLD_PROMISE
  W.floor = EPOCH(W.view) + JUMP;
#else
  W.floor = (EPOCH(W.view) > W.floor -> EPOCH(W.view) : W.floor) + JUMP;
#endif
}

#define REPORTED(rank, v) (lease[rank] != 0 && EPOCH(lease[rank] - 1) > EPOCH(v))
#define IS_NEWEST(v) (!REPORTED(0, v) && !REPORTED(1, v) && !REPORTED(2, v))
#define IS_IN(rank, v) (!HAS(MEMBERS(v), rank) || lease[rank] != 0)
#ifdef NO_WAIT_FOR_ALL
#define ALL_ARE_IN(v) true
#else
#define ALL_ARE_IN(v) (IS_IN(0, v) && IS_IN(1, v) && IS_IN(2, v))
#endif

/* Any member may propose a part of its view that it is in itself: a suspicion may be false. Without
 * a document, the view is the newest that was reported, and all of its members have reported. */
#define IS_PART(set) (set <= EVERYONE && HAS(set, me) && (set & MEMBERS(W.view)) == set)
#define MAY_FOLLOW(set)                                                                          \
  (document != NONE && document == W.view && IS_PART(set) && set != MEMBERS(W.view))
#define MAY_RECOVER(set)                                                                         \
  (document == NONE && lease[me] == 1 + W.view && IS_NEWEST(W.view) && ALL_ARE_IN(W.view) &&     \
   IS_PART(set))
#define MAY_PROPOSE(set) (W.alive && decided < VIEWS && (MAY_FOLLOW(set) || MAY_RECOVER(set)))
/* Without a document: the greatest promise of those that have registered. */
inline next() {
  n = EPOCH(W.view) + 1;
  if
  :: document == NONE ->
     for (i : 0 .. WORKERS - 1) {
       if
       :: lease[i] != 0 && worker[i].floor > n -> n = worker[i].floor
       :: else
       fi
     }
  :: else
  fi
}

inline decide(epoch_of, set) {
  assert(document == NONE || epoch_of > EPOCH(document)); /* I9 */
  views[decided].epoch = epoch_of;
  views[decided].members = set;
  document = decided;
  decided++
}

/* A compare-and-set fails where the document has changed, or the registry has lost it. So it may as
 * well arrive at once. */
#ifdef NO_INCARNATION
#define PROPOSE(set)                                                                             \
  :: d_step {                                                                                    \
       MAY_PROPOSE(set) && W.request.members == 0 ->                                             \
       next(); W.request.members = set; W.request.epoch = n; W.request.version = version; skip }

inline arrive() {
  if
  :: W.request.version == version && decided < VIEWS ->
     decide(W.request.epoch, W.request.members);
     version++
  :: else
  fi;
  W.request.members = 0;
  W.request.epoch = 0;
  W.request.version = 0
}
#else
#define PROPOSE(set)                                                                             \
  :: d_step { MAY_PROPOSE(set) -> next(); decide(n, set); skip }
#endif

/* A member that the others wait for is dead: the job ends with an error. */
#define IS_DEAD(rank) (HAS(MEMBERS(W.view), rank) && !worker[rank].alive && lease[rank] == 0)
#define MAY_FAIL                                                                                 \
  (W.alive && !failed && incarnation > 0 && document == NONE &&                                  \
   (IS_DEAD(0) || IS_DEAD(1) || IS_DEAD(2)))

#define VIEW(v)                                                                                  \
  :: d_step { MAY_INSTALL(v) -> install(v); skip }

#define SET(set)                                                                                 \
  :: d_step { MAY_TAKE(set) -> take(set); skip }                                                 \
  PROPOSE(set)

proctype Works(byte me) {
end:
  do
  :: d_step { MAY_CONTRIBUTE -> F.got = F.got | (1 << me); skip }
  :: d_step { MAY_UPLOAD -> F.sums = F.sums | (1 << W.set); skip }
  :: d_step { MAY_REGISTER -> register(); skip }
#ifdef NO_INCARNATION
  :: d_step { W.request.members != 0 -> arrive(); skip }
#endif
  :: d_step { W.alive && deaths > 0 -> deaths--; W.alive = 0; skip }
  :: d_step { !W.alive && lease[me] != 0 -> lease[me] = 0; skip }
  :: d_step { MAY_FAIL -> failed = 1; skip }
  VIEW(1)
  VIEW(2)
#if VIEWS > 3
  VIEW(3)
#endif
  SET(1)
  SET(2)
  SET(3)
  SET(4)
  SET(5)
  SET(6)
  SET(7)
  od
}

inline lose() {
  losses--;
  incarnation++;
  document = NONE;
#ifdef NO_INCARNATION
  version = 0;
#endif
  for (i : 0 .. WORKERS - 1) {
    lease[i] = 0
  }
}

#define SUM(v)                                                                                   \
  :: d_step {                                                                                    \
       MAY_SUM(v) -> frames[EPOCH(v)].sums = frames[EPOCH(v)].sums | (1 << MEMBERS(v)); skip }

proctype Others() {
end:
  do
  SUM(0)
  SUM(1)
  SUM(2)
#if VIEWS > 3
  SUM(3)
#endif
  :: d_step { losses > 0 -> lose(); skip }
  od
}

/* I11: where nothing moves any more, each member of the newest view has the result, or the job has
 * ended with an error. Where a member is dead or the document is lost, the workers wait for the
 * next document, which the model may not have. */
proctype Watches() {
  timeout ->
  d_step {
    j = 0;
    for (i : 0 .. WORKERS - 1) {
      j = j | (worker[i].alive << i)
    }
    assert(failed || document != NONE || decided == VIEWS);
    if
    :: document != NONE && (MEMBERS(document) & j) == MEMBERS(document) ->
       for (i : 0 .. WORKERS - 1) {
         assert(failed || !HAS(MEMBERS(document), i) || worker[i].set != 0)
       }
    :: document != NONE && (MEMBERS(document) & j) != 0 &&
       (MEMBERS(document) & j) != MEMBERS(document) ->
       assert(failed || decided == VIEWS)
    :: else
    fi
  }
}

init {
  d_step {
    views[0].members = EVERYONE;
    views[0].installed = 1;
    for (i : 0 .. WORKERS - 1) {
      worker[i].alive = 1
    }
  }
  atomic {
    for (i : 0 .. WORKERS - 1) {
      run Works(i)
    }
    run Others();
    run Watches()
  }
}
