/* sleep.pml - the sleep protocol of the scheduler, for the model checker Spin.
 *
 * What is modelled, what each switch breaks, and the verdicts: README.md.
 * Run by: run.sh, which defines one configuration (CORE, ...) and the switches (M_...) of one check.
 *
 * Rules of the model
 *   R1  One step (a statement, or an atomic block) makes one access to shared memory. What an atomic
 *       block does besides is local to its process, or a ghost that no process reads.
 *   R2  A plain store goes into the store buffer of its worker: pend[] (publication into its own
 *       deque or ring) and lpend[] (latch back to UNSET). Memory moves it out at any later time; a
 *       fence or a read-modify-write of the same worker moves it out first. This is x86-TSO.
 *   R3  A run may be long: hold() may block until everything else has come to rest. Then Monitor
 *       looks: work within reach of a blocked worker is a lost wake-up. It lets the held ones go.
 *   R4  The event counter (JEC) is only ever compared for equality with a remembered value. So it is
 *       kept as its parity (odd) and, for each worker, whether the value it remembers is still the
 *       current one (same[]): an unbounded counter, without a wrap and without its states.
 *   R5  Work is a set of bits: the order within a queue plays no part in who sleeps. Each bit is one
 *       job or task; the low four are jobs.
 *   R6  A search outside of round 33 finds anything that is there, or nothing.
 */

/* ---------------------------------------------------------------- configurations */

#define JOBS 15

#if defined(INJECT)
/* 2 workers, 2 posters: injected tasks R and S. */
#define NW 2
#define R 16
#define S 32
#define ALL (R | S)
#define START SEARCH(0); SEARCH(1); run Poster(R); run Poster(S)

#elif defined(CORE)
/* 2 workers, 2 posters: injected tasks F and R; F forks job J. */
#define NW 2
#define F 16
#define R 32
#define J 1
#define KIDS(x) ((x) == F -> J : 0)
#define ALL (F | R | J)
#define START SEARCH(0); SEARCH(1); run Poster(F); run Poster(R)

#elif defined(RING)
/* 2 workers, 2 posters: injected tasks R and S; R posts T into its runner's ring. */
#define NW 2
#define R 16
#define S 32
#define T 64
#define OWN(x) ((x) == R -> T : 0)
#define RINGS
#define ALL (R | S | T)
#define START SEARCH(0); SEARCH(1); run Poster(R); run Poster(S)

#elif defined(BATCH)
/* 2 workers, 2 posters: injected tasks R and S. Who takes from the injector takes all of it, and posts
 * what it does not run into its own ring. */
#define NW 2
#define R 16
#define S 32
#define RINGS
#define ALL (R | S)
#define START SEARCH(0); SEARCH(1); run Poster(R); run Poster(S)

#elif defined(DIRECTED)
/* 2 workers, 2 posters: one broadcasts D0 to worker 0 and D1 to worker 1, one injects R. */
#define NW 2
#define D0 16
#define D1 32
#define R 64
#define ALL (D0 | D1 | R)
#define START SEARCH(0); SEARCH(1); run Broadcaster(); run Poster(R)

#elif defined(JOIN)
/* 2 workers, 1 poster: begins with worker 0 running F, which forks J, and J forks K, so that who waits
 * for J can help with K; task T is injected. */
#define NW 2
#define F 16
#define T 32
#define J 1
#define K 2
#define KIDS(x) ((x) == F -> J : ((x) == J -> K : 0))
#define ALL (F | T | J | K)
#define START started = F; run Worker(0, RUNS, F, 0, 0); SEARCH(1); run Poster(T)

#elif defined(ALARM)
/* 2 workers and the alarm: begins as JOIN, without T; a fork arms the alarm instead of waking. */
#define NW 2
#define F 16
#define J 1
#define K 2
#define KIDS(x) ((x) == F -> J : ((x) == J -> K : 0))
#define DEFERRED
#define ALL (F | J | K)
#define START started = F; run Worker(0, RUNS, F, 0, 0); SEARCH(1); run Alarm()

#elif defined(SHORT)
/* 2 workers, 1 poster and the alarm: begins with worker 0 running R, which posts T into its ring; S is injected.
 * A wake for a task is left to the alarm if somebody runs. */
#define NW 2
#define R 16
#define S 32
#define T 64
#define OWN(x) ((x) == R -> T : 0)
#define RINGS
#define DEFERRED
#define ALL (R | S | T)
#define START started = R; run Worker(0, RUNS, R, 0, 0); SEARCH(1); run Poster(S); run Alarm()

#elif defined(TRIO)
/* Begins with worker 0 blocked in the join of J, which worker 1 runs, and worker 2 asleep; one poster
 * injects T. */
#define NW 3
#define F 16
#define T 32
#define J 1
#define KIDS(x) 0
#define ALL (F | T | J)
#define START                                                                                      \
  BLOCKED(0, J); ASLEEP(2); started = F | J;                                                       \
  run Worker(0, WAITS, F, 0, J); run Worker(1, RUNS, J, J, 0); run Worker(2, SLEEPS, 0, 0, 0); run Poster(T)

#elif defined(TEAM)
/* Begins with workers 0 and 1 blocked in the joins of J and M, which workers 2 and 3 run; M forks L.
 * Who is done with all that goes on to something else that does not end. */
#define NW 4
#define F 16
#define G 32
#define J 1
#define M 2
#define L 8
#define KIDS(x) ((x) == M -> L : 0)
#define RETIRES
#define ALL (F | G | J | M | L)
#define START                                                                                      \
  BLOCKED(0, J); BLOCKED(1, M); started = F | G | J | M;                                           \
  run Worker(0, WAITS, F, 0, J); run Worker(1, WAITS, G, 0, M);                                    \
  run Worker(2, RUNS, J, J, 0); run Worker(3, RUNS, M, M, 0)

#elif defined(TEAM_ALARM)
/* As TEAM, with the alarm; J and M have forked K and L, and the alarm is armed. */
#define NW 4
#define F 16
#define G 32
#define J 1
#define M 2
#define K 4
#define L 8
#define KIDS(x) ((x) == J -> K : ((x) == M -> L : 0))
#define RETIRES
#define DEFERRED
#define ALL (F | G | J | M | K | L)
#define START                                                                                      \
  BLOCKED(0, J); BLOCKED(1, M); started = F | G | J | M;                                           \
  run Worker(0, WAITS, F, 0, J); run Worker(1, WAITS, G, 0, M);                                    \
  deque[2] = K; waiter[NR(K)] = 2; deque[3] = L; waiter[NR(L)] = 3; armed = 1;                     \
  run Worker(2, FORKED, J, J, 0); run Worker(3, FORKED, M, M, 0); run Alarm()
#endif

#define SEARCH(w) run Worker(w, SEARCHES, 0, 0, 0)

/* ---------------------------------------------------------------- shared memory */

/* latch of a worker; that of a job has no WAITING */
#define UNSET 0
#define SLEEPY 1
#define SLEEPING 2
#define WAITING 3 /* blocked as a join waiter: not in the count of sleepers */
#define SET 4

byte sleeping, inactive; /* the counters' word: these two, */
bool odd;                /* the parity of its event counter, */
bool same[NW];           /* and R4 */

byte latch[NW];
byte sbits, wbits; /* bitmaps: sleepers, join waiters */

byte global;        /* injector and global queue */
#ifdef RINGS
byte ring[NW];      /* tasks */
#endif
#ifdef KIDS
byte deque[NW];     /* exposed jobs; an owner's is empty when it has joined them */
byte jlatch[4];     /* a job's latch */
byte waiter[4];     /* a job's record of who waits for it */
#endif
#ifdef DIRECTED
byte directed[NW];  /* tasks for this worker only */
#endif
#ifdef DEFERRED
bool armed;
#endif
byte pend[NW + 2];  /* R2; the last two belong to the threads outside and the alarm, and stay empty */
bool lpend[NW + 2]; /* R2 */
#define THE_ALARM (NW + 1)

/* ghosts */
byte started; /* work */
byte freed;   /* jobs whose frame is gone */
byte owed;    /* wakers between taking a latch from SLEEPING and taking it off the count */
bool held[NW];

/* the verdicts: the checker names the one that is violated */
#ifdef M_BREADTH_FIRST
#define hidden /* is not possible there */
#endif
hidden byte lost_wakeup, bad_count, run_twice, not_run, use_after_free, bad_latch;
#define REQUIRE(verdict, ok) verdict = !(ok); assert(!verdict)

#define LOW(m) ((m) & (256 - (m)))
#define NR(b) (((b) >> 1) - ((b) >> 3)) /* of one of the four lowest bits */
#define O1 ((me + 1) % NW)
#define O2 ((me + 2) % NW)
#define O3 ((me + 3) % NW)

#if NW == 2
#define OTHERS(f) f(O1)
#define EACH(f) f(0); f(1)
#define ANY(q) (q[0] | q[1])
#define COUNT(f) (f(0) + f(1))
#elif NW == 3
#define OTHERS(f) f(O1); f(O2)
#define EACH(f) f(0); f(1); f(2)
#define ANY(q) (q[0] | q[1] | q[2])
#define COUNT(f) (f(0) + f(1) + f(2))
#else
#define OTHERS(f) f(O1); f(O2); f(O3)
#define EACH(f) f(0); f(1); f(2); f(3)
#define ANY(q) (q[0] | q[1] | q[2] | q[3])
#define COUNT(f) (f(0) + f(1) + f(2) + f(3))
#endif

/* empties the store buffer of p; part of the step that names it */
#ifdef KIDS
#define FLUSH_JOBS(p) deque[(p) % NW] = deque[(p) % NW] | (pend[p] & JOBS)
#else
#define FLUSH_JOBS(p) skip
#endif
#ifdef RINGS
#define FLUSH_TASKS(p) ring[(p) % NW] = ring[(p) % NW] | (pend[p] & ~JOBS)
#else
#define FLUSH_TASKS(p) skip
#endif
#define FLUSH(p)                                                                                   \
  FLUSH_JOBS(p);                                                                                   \
  FLUSH_TASKS(p);                                                                                  \
  pend[p] = 0;                                                                                     \
  latch[(p) % NW] = (lpend[p] -> UNSET : latch[(p) % NW]);                                         \
  lpend[p] = 0

#define FORGET(w) same[w] = 0
#define COUNTS REQUIRE(bad_count, sleeping >= owed && sleeping - owed <= inactive && inactive <= NW)

/* ---------------------------------------------------------------- waker */

#ifdef M_TASK_CLAIMS_WAITER
#define CLAIMABLE (sbits | wbits)
#else
#define CLAIMABLE sbits
#endif

/* Who swaps a latch to SET takes a sleeper off the count if the latch was SLEEPING. */
#if defined(M_DECREMENT_BY_BITMAP)
#define TAKES_OFF(l) (!join && (l == SLEEPING || l == WAITING))
#elif defined(M_DECREMENT_SLEEPY)
#define TAKES_OFF(l) (l == SLEEPING || l == SLEEPY)
#else
#define TAKES_OFF(l) (l == SLEEPING)
#endif

/* The swap has woken whom it was meant for: it is on its way, or has yet to make its last look. */
#ifdef M_NO_NEXT_BIT
#define HIT(l) 1
#else
#define HIT(l) (l == SLEEPY || l == SLEEPING || (l == WAITING && join))
#endif

/* Wake `wakes` sleepers; if there is none, and it is about a job, one join waiter. Its variables:
 *   wakes  sleepers yet to be claimed        v     1 + the claimed worker, whose latch comes next
 *   lack   no idle worker is there for it    join  that one was claimed, or is known, as a waiter
 *   off    a decrement comes next */
inline wake(p, job) {
  do
  :: atomic { /* claim a sleeper */
       !off && !v && wakes && CLAIMABLE ->
       FLUSH(p);
       v = 1 + NR(LOW(CLAIMABLE));
       sbits = sbits & ~(1 << (v - 1));
#ifdef M_TASK_CLAIMS_WAITER
       wbits = wbits & ~(1 << (v - 1))
#endif
     }
  :: atomic { !off && !v && wakes && !CLAIMABLE -> wakes = 0 }
#if defined(KIDS) && !defined(M_NO_WAITER_CLAIM)
  :: atomic { /* claim a join waiter */
       !off && !v && !wakes && (job) && lack && wbits ->
       FLUSH(p);
       v = 1 + NR(LOW(wbits));
       join = 1;
       wbits = wbits & ~LOW(wbits)
     }
#endif
  :: atomic { /* swap its latch */
       !off && v ->
       FLUSH(p);
       off = TAKES_OFF(latch[v - 1]);
       owed = owed + off;
       if
       :: HIT(latch[v - 1]) -> lack = 0; wakes = (wakes -> wakes - 1 : 0)
       :: else /* try the next bit */
       fi;
#ifdef M_SKIP_SLEEPY
       latch[v - 1] = (latch[v - 1] == SLEEPY -> SLEEPY : SET);
#else
       latch[v - 1] = SET;
#endif
       v = 0;
       join = 0
     }
  :: atomic { /* take it off the count, and wake it */
       off ->
       FLUSH(p);
       off = 0;
       owed--;
#ifndef M_NO_DECREMENT
       REQUIRE(bad_count, sleeping > 0);
       sleeping--;
#endif
       COUNTS
     }
  :: atomic { else -> wakes = 0; lack = 0; break }
  od
}

/* ---------------------------------------------------------------- poster */

/* One access to the counters: a CAS if the event counter is even, a load if it is odd. */
#ifdef M_NO_POSTER_ODD
#define MAKE_ODD(p) skip
#else
#define MAKE_ODD(p) if :: !odd -> FLUSH(p); odd = 1; EACH(FORGET) :: else fi
#endif

#ifdef SHORT
#define LATER , runs
/* The wake for a task is left to the alarm if somebody runs. One step reads `armed`, another sets it. */
#ifdef M_DEFER_WITHOUT_ARMING
#define ARM(p) skip
#else
#define ARM(p) atomic { FLUSH(p); armed = 1 }
#endif
#define DEFER(p, job)                                                                              \
  if                                                                                               \
  :: wakes && runs && !(job) && p != THE_ALARM ->                                                  \
     if :: armed :: else -> ARM(p) fi;                                                             \
     atomic { wakes = 0; lack = 0 }                                                                \
  :: else                                                                                          \
  fi
#define RUNS_BESIDE runs = (inactive < NW)
#else
#define LATER
#define DEFER(p, job) skip
#define RUNS_BESIDE skip
#endif

/* A piece of work is published: a job (job != 0) or a task. The fence is the caller's. */
inline post(p, job) {
  atomic {
    MAKE_ODD(p);
    lack = (1 + sleeping > inactive);
    wakes = (lack && sleeping);
    RUNS_BESIDE
  }
  DEFER(p, job);
  wake(p, job)
}

/* A worker publishes by a plain store; the fence is between it and what is read next. */
#define BUFFER(x) pend[me] = pend[me] | (x)
#ifdef M_NO_POST_FENCE
#define FENCE skip
#else
#define FENCE atomic { FLUSH(me) }
#endif

/* ---------------------------------------------------------------- worker */

inline start(x) {
  REQUIRE(run_twice, !(started & (x)));
  started = started | (x)
}

/* R3 */
inline hold() {
  atomic {
    if
    :: skip
    :: held[me] = 1; !held[me]
    fi
  }
}

/* Latch back to UNSET: a plain store. */
#define RESET lpend[me] = 1

/* Options of a search (R6): each is one read-modify-write on one queue. */
#ifdef KIDS
#define TAKE_JOB(o)                                                                                \
  :: deque[o] != 0 -> FLUSH(me); it = LOW(deque[o]); deque[o] = deque[o] & ~it; comp = it
#define HELP_JOB(o) :: deque[o] != 0 -> FLUSH(me); h = LOW(deque[o]); deque[o] = deque[o] & ~h
#else
#define TAKE_JOB(o)
#endif
#ifdef RINGS
#define TAKE_RING(o) :: ring[o] != 0 -> FLUSH(me); it = LOW(ring[o]); ring[o] = ring[o] & ~it
#else
#define TAKE_RING(o)
#endif
#ifdef BATCH
#define TAKE_GLOBAL                                                                                \
  :: global != 0 -> FLUSH(me); it = LOW(global); rest = global & ~it; global = 0
#else
#define TAKE_GLOBAL :: global != 0 -> FLUSH(me); it = LOW(global); global = global & ~it
#endif
#ifdef DIRECTED
#define TAKE_DIRECTED                                                                              \
  :: directed[me] != 0 -> FLUSH(me); it = LOW(directed[me]); directed[me] = directed[me] & ~it
#else
#define TAKE_DIRECTED
#endif
#if NW == 2
#define OF_OTHERS(f) f(O1)
#elif NW == 3
#define OF_OTHERS(f) f(O1) f(O2)
#else
#define OF_OTHERS(f) f(O1) f(O2) f(O3)
#endif
#define TAKE TAKE_GLOBAL TAKE_DIRECTED TAKE_RING(me) OF_OTHERS(TAKE_JOB) OF_OTHERS(TAKE_RING)

/* Round 33, one place at a time. */
#define TRY(take) atomic { if take; same[me] = 0; goto found :: else fi }
#define TRY_JOB(o) TRY(TAKE_JOB(o))
#define TRY_RING(o) TRY(TAKE_RING(o))
inline round33() {
#if defined(DIRECTED) && !defined(M_NO_DIRECTED_33)
  TRY(TAKE_DIRECTED);
#endif
#ifdef RINGS
  TRY_RING(me);
  OTHERS(TRY_RING);
#endif
#ifdef KIDS
  OTHERS(TRY_JOB);
#endif
  TRY(TAKE_GLOBAL)
}

/* Is there more? If so, wake one. need: 1 tasks, 2 jobs. */
#define LOOK(q, kind) atomic { if :: q != 0 -> need = need | kind :: else fi }
#define LOOK_JOBS(o) LOOK(deque[o], 2)
#define LOOK_RING(o) LOOK(ring[o], 1)
inline look_for_more() {
#ifdef RINGS
  LOOK_RING(me);
  OTHERS(LOOK_RING);
#endif
#ifdef KIDS
  OTHERS(LOOK_JOBS);
#endif
  LOOK(global, 1)
}
inline look_for_jobs() {
  OTHERS(LOOK_JOBS)
}
inline wake_for_more(p) {
  if
  :: need -> post(p, need & 2); need = 0
  :: else
  fi
}

#ifdef KIDS
/* A stolen job is done: read the waiter's number, swap the job's latch, wake the waiter. */
#define READ_WAITER(x) REQUIRE(use_after_free, !(freed & (x))); v = 1 + waiter[NR(x)]
inline complete(x) {
#ifndef M_READ_WAITER_LATE
  atomic { READ_WAITER(x) }
#endif
  atomic {
    REQUIRE(use_after_free, !(freed & (x)));
    FLUSH(me);
    join = (jlatch[NR(x)] == SLEEPING);
#ifndef M_READ_WAITER_LATE
    v = (join -> v : 0);
#endif
    jlatch[NR(x)] = SET
  }
#ifdef M_READ_WAITER_LATE
  if
  :: atomic { join -> READ_WAITER(x) }
  :: else
  fi;
#endif
  wake(me, 0)
}
#endif

/* A fork tells that its job is exposed. */
#if defined(DEFERRED) && defined(KIDS)
inline expose() {
  if
  :: armed
  :: else -> atomic { FLUSH(me); armed = 1 }
  fi
}
#else
#define expose() post(me, 1)
#endif

#define SEARCHES 0
#define RUNS 1
#define FORKED 2
#define SLEEPS 3
#define WAITS 4

/* at: where it is at the beginning; first: what it runs then; stolen: that, if it is a stolen job;
 * awaited: the job it is blocked for. */
proctype Worker(byte me, at, first, stolen, awaited) {
  byte it = first;     /* what it runs */
  byte comp = stolen;  /* the stolen job that is done when it is */
  byte rest;           /* of a batch: what it does not run */
  byte todo;           /* forked, not yet joined */
  byte j = awaited, h; /* the job it waits for; the job it helps with meanwhile */
  byte need;
  bool idle;           /* in the inactive count */
  bool claimed;        /* a join waiter whose bit somebody took */
  bool early;
  byte v;
  bool lack, wakes, join, off LATER;

  atomic {
    first = 0; stolen = 0; awaited = 0;
    if
    :: at == SEARCHES -> skip
    :: at == RUNS -> at = 0; goto fork
    :: at == SLEEPS -> at = 0; idle = 1; goto end_sleeping
#ifdef KIDS
    :: at == FORKED -> at = 0; todo = KIDS(it); goto forked
    :: at == WAITS -> at = 0; goto blocked
#endif
    fi
  }

again: /* an active worker's search: it is not counted, so nobody relies on it */
  atomic {
    if
#ifdef RETIRES
    :: goto end_retired
#else
    TAKE
    :: FLUSH(me); inactive++; COUNTS; idle = 1; goto rounds
#endif
    fi
  }
  goto found;

rounds: /* step 1: rounds 0..31 */
  atomic {
    if
    TAKE
    :: skip -> goto announce
    fi
  }
  goto found;

announce:
#ifdef M_NO_ANNOUNCE_FENCE
  round33();
#endif
  atomic { /* step 2: round 32 */
    if
#if defined(M_SEEDS_JEC)
    :: !odd -> FLUSH(me); odd = 1; EACH(FORGET)
    :: else
#elif defined(M_NO_ANNOUNCE)
    :: skip
#else
    :: odd -> FLUSH(me); odd = 0; EACH(FORGET)
    :: else
#endif
    fi;
    same[me] = 1
  }
#if !defined(M_NO_ANNOUNCE_FENCE) && !defined(M_NO_ROUND33)
  round33(); /* step 3: round 33 */
#endif

#ifdef M_LOOK6_BEFORE_4
  early = (directed[me] != 0);
#endif
  /* step 4 */
  atomic {
    FLUSH(me);
    if
    :: latch[me] == UNSET -> latch[me] = SLEEPY
    :: else -> /* SET late: reset, search once more */
       REQUIRE(bad_latch, latch[me] == SET);
#ifdef M_SET_LATE_IGNORED
       latch[me] = SLEEPY
#else
       latch[me] = UNSET; same[me] = 0; goto announce
#endif
    fi
  }
#ifndef M_BIT_AFTER_COUNT
  atomic { FLUSH(me); sbits = sbits | (1 << me) }
#endif

#ifdef M_NO_FENCE6
  atomic { if :: early = 1; need = global :: skip fi }
#endif
  /* step 5 */
  atomic {
    FLUSH(me);
    if
#ifdef M_NO_JEC_CHECK
    :: sleeping++; COUNTS; same[me] = 0
#else
    :: same[me] -> sleeping++; COUNTS; same[me] = 0
    :: else -> need = 0; early = 0; goto undo4
#endif
    fi
  }
#ifdef M_BIT_AFTER_COUNT
  atomic { FLUSH(me); sbits = sbits | (1 << me) }
#endif

  /* step 6; its fence is the read-modify-write before it */
#if defined(M_NO_FENCE6)
  atomic {
    if
    :: !early && global -> goto undo5
    :: early && need -> early = 0; need = 0; goto undo5
    :: else -> early = 0
    fi
  }
#elif !defined(M_NO_STEP6)
  atomic { if :: global -> goto undo5 :: else fi }
#endif
#if defined(M_LOOK6_BEFORE_4)
  atomic { if :: early -> early = 0; goto undo5 :: else fi }
#elif defined(DIRECTED) && !defined(M_NO_DIRECTED_6)
  atomic { if :: directed[me] -> goto undo5 :: else fi }
#endif

  /* step 7 */
  atomic {
    FLUSH(me);
    if
#ifdef M_STEP7_STORE
    :: latch[me] = SLEEPING
#else
    :: latch[me] == SLEEPY -> latch[me] = SLEEPING
    :: else -> goto undo5
#endif
    fi
  }

  /* step 8 */
end_sleeping:
  latch[me] != SLEEPING;
  atomic { FLUSH(me); sbits = sbits & ~(1 << me) }
#ifdef M_DOUBLE_DECREMENT
  atomic { FLUSH(me); REQUIRE(bad_count, sleeping > 0); sleeping--; COUNTS }
#endif
  RESET;
  goto rounds;

undo5:
  atomic { FLUSH(me); REQUIRE(bad_count, sleeping > 0); sleeping--; COUNTS }
  atomic { FLUSH(me); sbits = sbits & ~(1 << me) }
  RESET;
  goto rounds;
undo4:
  atomic { FLUSH(me); sbits = sbits & ~(1 << me) }
  RESET;
  goto announce;

found: /* the finder's rule: off the count, then look for more, wake one, and only then run */
#ifdef BATCH
  if
  :: atomic { rest -> BUFFER(rest); rest = 0 }
     FENCE;
#ifndef M_NO_BATCH_POST
     post(me, 0)
#endif
  :: else
  fi;
#endif
  if
#ifdef M_FINDER_LOOKS_FIRST
  :: idle ->
     look_for_more();
     atomic { FLUSH(me); inactive--; COUNTS; idle = 0 }
     wake_for_more(me)
#else
  :: atomic {
       idle ->
       FLUSH(me); inactive--; COUNTS;
#ifndef M_FINDER_LATE
       idle = 0
#endif
     }
#if !defined(M_NO_FINDER) && !defined(M_FINDER_LATE)
     look_for_more();
     wake_for_more(me)
#endif
#endif
  :: else
  fi;

  /* run */
  atomic { start(it) }
fork:
#ifdef KIDS
  if
  :: atomic {
       KIDS(it) ->
       todo = KIDS(it);
       waiter[NR(todo)] = me;
       jlatch[NR(todo)] = UNSET;
       BUFFER(todo)
     }
     FENCE;
     expose()
  :: else
  fi;
#endif
#ifdef OWN
  if
  :: atomic { OWN(it) -> BUFFER(OWN(it)) }
     FENCE;
     post(me, 0)
  :: else
  fi;
#endif
forked:
  hold();
#ifdef M_FINDER_LATE
  if
  :: idle -> idle = 0; look_for_more(); wake_for_more(me)
  :: else
  fi;
#endif

#ifdef KIDS
  /* join */
  if
  :: atomic {
       todo ->
       FLUSH(me);
       if
       :: deque[me] & todo -> /* nobody stole it: it is this worker's to run, as the rest of it */
          deque[me] = deque[me] & ~todo;
          start(todo);
          it = todo;
          todo = 0;
          goto fork
       :: else -> j = todo; todo = 0
       fi
     }
  :: else -> goto finish
  fi;

#ifdef M_WAITER_IS_INACTIVE
#define COUNT_WAITER(n) inactive = inactive + n
#else
#define COUNT_WAITER(n) skip
#endif
wait: /* the join wait (4.2): runs jobs only, until the job's latch is SET */
  atomic { if :: jlatch[NR(j)] == SET -> goto leave :: else fi }
  atomic {
    if
    OF_OTHERS(HELP_JOB)
    :: skip -> goto step1
    fi
  }
#ifndef M_NO_HELPER_CHAIN
  look_for_jobs(); /* a helper is a finder: there may be a job for another waiter */
  wake_for_more(me);
#endif
  atomic { start(h) }
  assert(!KIDS(h));
  hold();
  complete(h);
  h = 0;
  goto wait;

step1:
  atomic {
    FLUSH(me);
    if
    :: latch[me] == UNSET -> latch[me] = SLEEPY; COUNT_WAITER(1)
    :: else -> /* SET late */
       REQUIRE(bad_latch, latch[me] == SET);
       latch[me] = UNSET;
       goto wait
    fi
  }
  atomic {
    FLUSH(me);
    if
    :: jlatch[NR(j)] == UNSET -> jlatch[NR(j)] = SLEEPY
    :: else -> goto undo1
    fi
  }
#ifdef M_NO_JOIN_FENCE
  look_for_jobs();
#endif
  atomic { FLUSH(me); wbits = wbits | (1 << me) }

  /* step 2 */
#if !defined(M_NO_JOIN_FENCE) && !defined(M_NO_JOIN_LOOK)
  look_for_jobs();
#endif
  if
  :: need -> need = 0; goto undo2
  :: else
  fi;

  /* step 3 */
#ifdef M_JOIN_OWN_LATCH_FIRST
  atomic { FLUSH(me); if :: latch[me] == SLEEPY -> latch[me] = WAITING :: else -> goto undo2 fi }
#endif
  atomic {
    FLUSH(me);
    if
    :: jlatch[NR(j)] == SLEEPY -> jlatch[NR(j)] = SLEEPING
    :: else -> goto undo2
    fi
  }
#ifndef M_JOIN_OWN_LATCH_FIRST
#ifdef M_JOIN_LATCH_STORE
  atomic { FLUSH(me); latch[me] = WAITING }
#else
  atomic { FLUSH(me); if :: latch[me] == SLEEPY -> latch[me] = WAITING :: else -> goto undo2 fi }
#endif
#endif

  /* step 4 */
blocked:
  latch[me] != WAITING;
undo2:
  atomic {
    FLUSH(me);
    claimed = (wbits & (1 << me) -> claimed : 1);
    wbits = wbits & ~(1 << me)
  }
undo1:
  RESET;
  atomic {
    FLUSH(me);
    jlatch[NR(j)] = (jlatch[NR(j)] == SET -> SET : UNSET);
    COUNT_WAITER(-1)
  }
  goto wait;

leave:
  atomic { freed = freed | j; j = 0 }
#ifdef M_NO_PASS_ON
  claimed = 0;
#else
  if
  :: claimed -> claimed = 0; look_for_jobs(); wake_for_more(me)
  :: else
  fi;
#endif
#if NW > 2
  hold(); /* what follows a join may be long as well */
#endif

finish:
  if
  :: comp -> complete(comp); comp = 0
  :: else
  fi;
#endif
  it = 0;
  goto again;
end_retired:
  false
}

/* ---------------------------------------------------------------- the others */

/* A thread outside: publishes by a read-modify-write. */
proctype Poster(byte what) {
  byte v;
  bool lack, wakes, join, off LATER;
  atomic { global = global | what; what = 0 }
  post(NW, 0)
}

#ifdef DIRECTED
/* Broadcast: to each worker's own list, then wake exactly that worker, if its bit says it sleeps. */
inline send(w, x) {
#ifndef M_SEND_WAKES_FIRST
  directed[w] = directed[w] | x;
#endif
  atomic { v = (sbits & (1 << w) -> 1 + w : 0); sbits = sbits & ~(1 << w) }
  wake(NW, 0);
#ifdef M_SEND_WAKES_FIRST
  directed[w] = directed[w] | x
#endif
}
proctype Broadcaster() {
  byte v;
  bool lack, wakes, join, off;
  send(0, D0);
  send(1, D1)
}
#endif

#ifdef DEFERRED
#ifdef KIDS
#define LOOK_AROUND EACH(LOOK_JOBS)
#else
#define LOOK_AROUND EACH(LOOK_RING); LOOK(global, 1)
#endif
/* The deferred wake: clear first, then look, then wake. */
proctype Alarm() {
  byte v, need;
  bool lack, wakes, join, off LATER;
end:
  do
  :: armed ->
#ifndef M_ALARM_CLEARS_LATE
     armed = 0;
#endif
     LOOK_AROUND;
#ifdef M_ALARM_CLEARS_LATE
     armed = 0;
#endif
     wake_for_more(THE_ALARM)
  od
}
#endif

/* R2 */
proctype Memory() {
end:
  do
  :: atomic { pend[0] || lpend[0] -> FLUSH(0) }
  :: atomic { pend[1] || lpend[1] -> FLUSH(1) }
#if NW > 2
  :: atomic { pend[2] || lpend[2] -> FLUSH(2) }
#endif
#if NW > 3
  :: atomic { pend[3] || lpend[3] -> FLUSH(3) }
#endif
  od
}

#ifdef KIDS
#define JOBS_LEFT ANY(deque)
#else
#define JOBS_LEFT 0
#endif
#ifdef RINGS
#define TASKS_LEFT (global | ANY(ring))
#else
#define TASKS_LEFT global
#endif
#ifdef DIRECTED
#define DIRECTED_LEFT(w) directed[w]
#else
#define DIRECTED_LEFT(w) 0
#endif
#define BLOCKS(w)                                                                                  \
  REQUIRE(lost_wakeup, latch[w] != SLEEPING ||                                                     \
    (TASKS_LEFT | JOBS_LEFT | DIRECTED_LEFT(w)) == 0);                                             \
  REQUIRE(lost_wakeup, latch[w] != WAITING || JOBS_LEFT == 0)
#define IS_ASLEEP(w) (latch[w] == SLEEPING)
#define RELEASE(w) held[w] = 0

#ifdef RETIRES
#define SLEEPERS 0
#else
#define SLEEPERS NW
#endif

/* R3: everything has come to rest */
proctype Monitor() {
  do
  :: timeout ->
     atomic {
       EACH(BLOCKS);
       REQUIRE(bad_count, owed == 0 && sleeping == COUNT(IS_ASLEEP));
#ifndef M_WAITER_IS_INACTIVE
       REQUIRE(bad_count, inactive == sleeping);
#endif
       if
       :: ANY(held) -> EACH(RELEASE)
       :: else -> break
       fi
     }
  od;
  atomic { /* nothing more will happen */
    REQUIRE(not_run, started == ALL && sleeping == SLEEPERS);
    REQUIRE(bad_latch, wbits == 0 && sbits == (1 << SLEEPERS) - 1)
  }
}

#define BLOCKED(w, x)                                                                              \
  COUNT_WAITER(1);                                                                                 \
  latch[w] = WAITING; wbits = wbits | (1 << w); jlatch[NR(x)] = SLEEPING; waiter[NR(x)] = w
#define ASLEEP(w) latch[w] = SLEEPING; sbits = sbits | (1 << w); sleeping++; inactive++

init {
  atomic {
    run Memory();
    START;
    run Monitor()
  }
}
