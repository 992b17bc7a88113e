/* sleep.pml - the sleep protocol of the scheduler, checked exhaustively by Spin.
 *
 * Protocol: docs/SLEEP.md. What is checked, what each switch breaks, and the verdicts: README.md.
 * Run by: run.sh, which passes one configuration (CORE, ...) and at most one switch (M_...) as -D.
 *
 * Rules of the model
 *   R1  One step (one statement, or one atomic block) makes one access to shared memory. What an
 *       atomic block does besides is local to its process, or ghost state that no process reads.
 *   R2  A plain store goes into the store buffer of its worker: pend[] (publication into its own
 *       deque or ring) and lpend[] (latch back to UNSET). Memory moves it out at any later time; a
 *       fence or a read-modify-write of the same worker moves it out first. This is x86-TSO.
 *   R3  A run may be long: hold() may block until everything else has come to rest. Then Monitor
 *       looks: work within reach of a sleeper at rest is a lost wake-up. It lets the held ones go.
 *   R4  The event counter is never compared but with == against a remembered value. So it is kept as
 *       its parity (odd) and, for each worker, whether its remembered value is still the current one
 *       (same[]): exactly an unbounded counter, without a wrap and without its states.
 *   R5  Work is a set of bits: the order of a queue plays no part in who sleeps. Each bit is one job
 *       or task; jobs are the low bits.
 */

/* ---------------------------------------------------------------- configurations */

#if defined(CORE)
/* 2 workers, 2 posters. F forks J, J forks K (so that a join waiter has something to help with);
 * R posts T into its runner's own ring. */
#define NW 2
#define J 1
#define K 2
#define F 16
#define R 32
#define T 64
#define JOBS (J | K)
#define KIDS(it) ((it) == F -> J : ((it) == J -> K : 0))
#define RING(it) 0
#define INJECT0 F
#define INJECT1 R
#define ALL (J | K | F | R)
#endif

#ifndef NJ
#define NJ 2
#endif
#ifndef KIDS
#define KIDS(it) 0
#endif
#ifndef RING
#define RING(it) 0
#endif
#ifndef ENDS
#define ENDS(it) 0
#endif

/* ---------------------------------------------------------------- shared memory */

/* latch of a worker; of a job: all but WAITING */
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

byte global;         /* injector and global queue */
byte ring[NW];       /* tasks */
byte deque[NW];      /* exposed jobs */
byte pend[NW + 1];   /* R2; the last one belongs to the threads outside and stays empty */
bool lpend[NW + 1];  /* R2 */

byte jlatch[NJ]; /* a job's latch */
byte waiter[NJ]; /* a job's record of who will wait for it */

#ifdef DIRECTED
byte directed[NW];
#endif
#ifdef ALARM
bool armed, timer;
#endif

/* ghosts */
byte started, done; /* work */
byte freed;         /* jobs whose frame is gone */
byte owed;          /* wakers between swapping a SLEEPING latch and taking it off the count */
bool held[NW];

#define LOW(m) ((m) & (256 - (m)))
#define WHO(b) ((b) >> 1)                  /* worker of a bit, up to 3 workers */
#define IX(b) ((b) == 8 -> 3 : ((b) >> 1)) /* index of a job's bit, up to 4 jobs */
#define O1 ((me + 1) % NW)
#define O2 ((me + 2) % NW)

/* empties the store buffer of p; part of the step that names it */
#define FLUSH(p)                                                                                   \
  deque[(p) % NW] = deque[(p) % NW] | (pend[p] & JOBS);                                            \
  ring[(p) % NW] = ring[(p) % NW] | (pend[p] & ~JOBS);                                             \
  pend[p] = 0;                                                                                     \
  latch[(p) % NW] = (lpend[p] -> UNSET : latch[(p) % NW]);                                         \
  lpend[p] = 0

#if NW == 2
#define FORGET same[0] = 0; same[1] = 0
#define RINGS (ring[0] | ring[1])
#define DEQUES (deque[0] | deque[1])
#else
#define FORGET same[0] = 0; same[1] = 0; same[2] = 0
#define RINGS (ring[0] | ring[1] | ring[2])
#define DEQUES (deque[0] | deque[1] | deque[2])
#endif

/* S1, and the bound on the counts: sleeping counts who is registered, and who is owed a decrement */
#define COUNTS_OK assert(sleeping >= owed && sleeping - owed <= inactive && inactive <= NW)

/* ---------------------------------------------------------------- waking */

/* Swap a worker's latch to SET. Whoever takes it from SLEEPING takes it off the count.
 * ok: an idle worker is on its way because of this, or has yet to make its last look. */
inline set_latch(p, w) {
  atomic {
    FLUSH(p);
    old = latch[w];
    latch[w] = SET;
    ok = (old == SLEEPING || old == SLEEPY);
    owed = (old == SLEEPING -> owed + 1 : owed);
  }
  if
  :: old == SLEEPING ->
     atomic { assert(sleeping > 0); sleeping--; owed--; COUNTS_OK; old = 0 }
  :: else -> old = 0
  fi
}

/* Post n pieces of work that are published: jobs (job = 1) or tasks. The publisher's fence is the
 * caller's. One access to the counters: a CAS if the event counter is even, a load if it is odd. */
inline post(p, n, job) {
  atomic {
    if
    :: !odd -> FLUSH(p); odd = 1; FORGET
    :: else
    fi;
    lack = (n + sleeping > inactive -> n + sleeping - inactive : 0);
    wakes = (lack < sleeping -> lack : sleeping);
    got = 0
  }
  do
  :: wakes > 0 ->
     atomic { /* claim a sleeper */
       if
       :: sbits != 0 -> FLUSH(p); v = WHO(LOW(sbits)); sbits = sbits & ~LOW(sbits)
       :: else -> wakes = 0; break
       fi
     }
     set_latch(p, v);
     atomic { v = 0; if :: ok -> wakes--; got = 1; ok = 0 :: else fi }
  :: else -> break
  od;
  if
  :: (job) && lack > 0 && !got ->
     do
     :: atomic { /* claim a join waiter */
          if
          :: wbits != 0 -> FLUSH(p); v = WHO(LOW(wbits)); wbits = wbits & ~LOW(wbits)
          :: else -> break
          fi
        }
        atomic { /* the latch again; here a WAITING one is what was looked for */
          FLUSH(p);
          old = latch[v];
          latch[v] = SET;
          ok = (old == SLEEPING || old == SLEEPY || old == WAITING);
          owed = (old == SLEEPING -> owed + 1 : owed);
          v = 0
        }
        if
        :: old == SLEEPING ->
           atomic { assert(sleeping > 0); sleeping--; owed--; COUNTS_OK; old = 0 }
        :: else -> old = 0
        fi;
        if
        :: ok -> ok = 0; break
        :: else
        fi
     od
  :: else
  fi;
  atomic { lack = 0; got = 0 }
}

/* ---------------------------------------------------------------- workers */

inline start(x) {
  assert(!(started & (x)));
  started = started | (x)
}

/* R3 */
inline hold() {
  if
  :: skip
  :: atomic { held[me] = 1; !held[me] }
  fi
}

/* A stolen job is done: read the waiter's number, swap the job's latch, wake the waiter. */
inline complete(x) {
  atomic { assert(!(freed & (x))); v = waiter[IX(x)] }
  atomic {
    assert(!(freed & (x)));
    FLUSH(me);
    old = jlatch[IX(x)];
    jlatch[IX(x)] = SET;
    done = done | (x)
  }
  if
  :: old == SLEEPING -> set_latch(me, v); ok = 0
  :: else -> old = 0
  fi;
  v = 0
}

/* What a worker may find outside of round 33: anything that is there, or nothing (R3 of the text:
 * rounds 0..31 are "searched and found nothing at least once"). Options of an if. */
#define STEAL_ONE(o)                                                                               \
  :: deque[o] != 0 -> FLUSH(me); it = LOW(deque[o]); deque[o] = deque[o] & ~it; comp = it          \
  :: ring[o] != 0 -> FLUSH(me); it = LOW(ring[o]); ring[o] = ring[o] & ~it
#if NW == 2
#define STEAL STEAL_ONE(O1)
#else
#define STEAL STEAL_ONE(O1) STEAL_ONE(O2)
#endif
#define TAKE                                                                                       \
  :: global != 0 -> FLUSH(me); it = LOW(global); global = global & ~it                             \
  :: ring[me] != 0 -> FLUSH(me); it = LOW(ring[me]); ring[me] = ring[me] & ~it                     \
  STEAL

/* One place of round 33. */
inline try_tasks(q) {
  atomic {
    if
    :: q != 0 -> FLUSH(me); it = LOW(q); q = q & ~it; goto found
    :: else
    fi
  }
}
inline try_jobs(q) {
  atomic {
    if
    :: q != 0 -> FLUSH(me); it = LOW(q); q = q & ~it; comp = it; goto found
    :: else
    fi
  }
}

proctype Worker(byte me; byte first) {
  byte it;        /* what it runs */
  byte comp;      /* the stolen job that is done when it is */
  byte todo;      /* forked, not yet joined */
  byte j, h;      /* the job it waits for; the job it helps with meanwhile */
  byte need;      /* of the finder: 1 more tasks, 2 more jobs */
  bool idle;      /* in the inactive count */
  bool claimed;   /* a join waiter whose bit somebody took */
  byte old, v, lack, wakes;
  bool ok, got;

again:
  /* a search that is not counted */
  atomic {
    if
    TAKE
    :: FLUSH(me); inactive++; COUNTS_OK; idle = 1; goto rounds
    fi
  }
  goto runs;

rounds: /* step 1: rounds 0..31 */
  atomic {
    if
    TAKE
    :: skip -> goto announce
    fi
  }
  goto found;

announce: /* step 2: round 32 */
  atomic {
    if
    :: odd -> FLUSH(me); odd = 0; FORGET
    :: else
    fi;
    same[me] = 1
  }

  /* step 3: round 33 */
  try_tasks(ring[me]);
  try_jobs(deque[O1]);
  try_tasks(ring[O1]);
#if NW > 2
  try_jobs(deque[O2]);
  try_tasks(ring[O2]);
#endif
  try_tasks(global);

  /* step 4 */
  atomic {
    FLUSH(me);
    if
    :: latch[me] == UNSET -> latch[me] = SLEEPY
    :: else -> assert(latch[me] == SET); latch[me] = UNSET; goto announce /* SET late */
    fi
  }
  atomic { FLUSH(me); sbits = sbits | (1 << me) }

  /* step 5 */
  atomic {
    FLUSH(me);
    if
    :: same[me] -> sleeping++; COUNTS_OK; same[me] = 0
    :: else -> goto undo4
    fi
  }

  /* step 6 */
  if
  :: global != 0 -> goto undo5
  :: else
  fi;

  /* step 7 */
  atomic {
    FLUSH(me);
    if
    :: latch[me] == SLEEPY -> latch[me] = SLEEPING
    :: else -> goto undo5
    fi
  }

  /* step 8 */
end_sleeping:
  latch[me] != SLEEPING;
  atomic { FLUSH(me); sbits = sbits & ~(1 << me) }
  lpend[me] = 1; /* latch UNSET: a plain store */
  goto rounds;

undo5:
  atomic { FLUSH(me); assert(sleeping > 0); sleeping--; COUNTS_OK }
  atomic { FLUSH(me); sbits = sbits & ~(1 << me) }
  lpend[me] = 1;
  goto rounds;
undo4:
  atomic { FLUSH(me); sbits = sbits & ~(1 << me) }
  lpend[me] = 1;
  goto announce;

found:
  same[me] = 0;
  /* the finder's rule: off the count, then look for more, wake one, and only then run */
  if
  :: idle ->
     atomic { FLUSH(me); inactive--; COUNTS_OK; idle = 0 }
     if :: ring[me] != 0 -> need = need | 1 :: else fi;
     if :: deque[O1] != 0 -> need = need | 2 :: else fi;
     if :: ring[O1] != 0 -> need = need | 1 :: else fi;
#if NW > 2
     if :: deque[O2] != 0 -> need = need | 2 :: else fi;
     if :: ring[O2] != 0 -> need = need | 1 :: else fi;
#endif
     if :: global != 0 -> need = need | 1 :: else fi;
     if
     :: need -> post(me, 1, need & 2); need = 0
     :: else
     fi
  :: else
  fi;

runs:
  start(it);
  /* fork: expose, fence, post */
  todo = KIDS(it);
  if
  :: todo ->
     atomic { waiter[IX(todo)] = me; jlatch[IX(todo)] = UNSET }
     atomic { assert(!pend[me] && !lpend[me]); pend[me] = todo }
     atomic { FLUSH(me) }
     post(me, 1, 1)
  :: else
  fi;
  if
  :: RING(it) ->
     atomic { assert(!pend[me] && !lpend[me]); pend[me] = RING(it) }
     atomic { FLUSH(me) }
     post(me, 1, 0)
  :: else
  fi;
  hold();

  /* join */
  if
  :: todo ->
     atomic {
       FLUSH(me);
       if
       :: deque[me] & todo -> /* nobody stole it: it is now this worker's to run, in place of it */
          deque[me] = deque[me] & ~todo;
          done = (it != comp -> done | it : done);
          it = todo;
          todo = 0;
          goto runs
       :: else -> j = todo; todo = 0
       fi
     }
  :: else -> goto finish
  fi;

wait: /* a join waiter: runs jobs only, until jlatch[j] is SET */
  if
  :: jlatch[IX(j)] == SET -> goto leave
  :: else
  fi;
  atomic { /* helps, if it finds a job */
    if
    :: deque[O1] != 0 -> FLUSH(me); h = LOW(deque[O1]); deque[O1] = deque[O1] & ~h; goto help
#if NW > 2
    :: deque[O2] != 0 -> FLUSH(me); h = LOW(deque[O2]); deque[O2] = deque[O2] & ~h; goto help
#endif
    :: skip
    fi
  }

  /* step 1 */
  atomic {
    FLUSH(me);
    if
    :: latch[me] == UNSET -> latch[me] = SLEEPY
    :: else -> assert(latch[me] == SET); latch[me] = UNSET; goto wait /* SET late */
    fi
  }
  atomic {
    FLUSH(me);
    if
    :: jlatch[IX(j)] == UNSET -> jlatch[IX(j)] = SLEEPY
    :: else -> goto undo1
    fi
  }
  atomic { FLUSH(me); wbits = wbits | (1 << me) }

  /* step 2 */
  if :: deque[O1] != 0 -> goto undo2 :: else fi;
#if NW > 2
  if :: deque[O2] != 0 -> goto undo2 :: else fi;
#endif

  /* step 3 */
  atomic {
    FLUSH(me);
    if
    :: jlatch[IX(j)] == SLEEPY -> jlatch[IX(j)] = SLEEPING
    :: else -> goto undo2
    fi
  }
  atomic {
    FLUSH(me);
    if
    :: latch[me] == SLEEPY -> latch[me] = WAITING
    :: else -> goto undo2
    fi
  }

  /* step 4 */
  latch[me] != WAITING;
undo2:
  atomic { FLUSH(me); claimed = (wbits & (1 << me) -> claimed : 1); wbits = wbits & ~(1 << me) }
undo1:
  lpend[me] = 1;
  atomic { FLUSH(me); jlatch[IX(j)] = (jlatch[IX(j)] == SET -> SET : UNSET) }
  goto wait;

help:
  assert(!KIDS(h));
  start(h);
  hold();
  complete(h);
  h = 0;
  goto wait;

leave:
  atomic { freed = freed | j; j = 0 }
  if
  :: claimed ->
     claimed = 0;
     if :: deque[O1] != 0 -> need = 2 :: else fi;
#if NW > 2
     if :: deque[O2] != 0 -> need = 2 :: else fi;
#endif
     if
     :: need -> post(me, 1, 1); need = 0
     :: else
     fi
  :: else
  fi;

finish:
  if
  :: comp -> complete(comp); atomic { done = done | it; comp = 0; it = 0 }
  :: else -> atomic { done = done | it; it = 0 }
  fi;
  goto again
}

/* ---------------------------------------------------------------- the others */

/* A thread outside: publishes by a read-modify-write, which is its fence. */
proctype Poster(byte what) {
  byte old, v, lack, wakes;
  bool ok, got;
  global = global | what;
  post(NW, 1, 0)
}

/* R2 */
proctype Memory() {
end:
  do
  :: atomic { (pend[0] || lpend[0]) -> FLUSH(0) }
  :: atomic { (pend[1] || lpend[1]) -> FLUSH(1) }
#if NW > 2
  :: atomic { (pend[2] || lpend[2]) -> FLUSH(2) }
#endif
  od
}

#define CHECK(w)                                                                                   \
  assert(latch[w] != SLEEPING || (global | RINGS | DEQUES) == 0);                                  \
  assert(latch[w] != WAITING || DEQUES == 0)

/* R3: everything has come to rest */
proctype Monitor() {
  do
  :: timeout ->
     atomic {
       CHECK(0);
       CHECK(1);
#if NW > 2
       CHECK(2);
#endif
       if
       :: held[0] || held[1]
#if NW > 2
          || held[2]
#endif
          ->
          held[0] = 0; held[1] = 0;
#if NW > 2
          held[2] = 0;
#endif
       :: else -> break
       fi
     }
  od;
  /* nothing more will happen */
  assert(started == ALL && done == ALL);
  assert(sleeping == NW && inactive == NW && owed == 0);
  assert(latch[0] == SLEEPING && latch[1] == SLEEPING);
  assert(wbits == 0 && sbits == (1 << NW) - 1);
}

init {
  atomic {
    run Memory();
    run Worker(0, 0);
    run Worker(1, 0);
    run Poster(INJECT0);
    run Poster(INJECT1);
    run Monitor()
  }
}
