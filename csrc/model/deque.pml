/* deque.pml - the public end of a worker's deque (csrc/sched/deque.c), for the model checker Spin.
 *
 * Three jobs are public. The owner pops until it is empty, two thieves steal, and each job must be taken once.
 * The owner's store of `split` waits in its store buffer until a fence or a read-modify-write of its own, or
 * until memory takes it (x86-TSO). Run by: run.sh, configuration DEQUE; switches M_...
 */
#define N 3

byte top, split = N;
bool pending; /* the owner's store buffer: split is to become `value` */
byte value;
byte taken[N]; /* ghost */
byte thieves = 2;

hidden byte run_twice, not_run;
#define REQUIRE(verdict, ok) verdict = !(ok); assert(!verdict)
#define TAKE(i) taken[i]++; REQUIRE(run_twice, taken[i] == 1)
#define FLUSH if :: pending -> split = value; pending = 0 :: else fi
#define STORE_SPLIT(x) atomic { FLUSH; pending = 1; value = x }

#ifdef M_NO_POP_FENCE
#define POP_FENCE skip
#else
#define POP_FENCE atomic { FLUSH }
#endif
#ifdef M_LAST_WITHOUT_CAS
#define LAST atomic { TAKE(b); top = b + 1 }
#else
#define LAST atomic { FLUSH; if :: top == b -> top = b + 1; TAKE(b) :: else fi }
#endif

active proctype Owner() {
  byte bottom = N, b, t;
  do
  :: bottom > 0 ->
     b = bottom - 1;
     if
     :: top > b -> break /* empty: top only grows */
     :: else
     fi;
     STORE_SPLIT(b);
     POP_FENCE;
     t = top;
     if
     :: t < b -> atomic { TAKE(b); bottom = b }
     :: t == b -> LAST; STORE_SPLIT(b + 1); break
     :: t > b -> STORE_SPLIT(b + 1); break
     fi
  :: else -> break
  od
}

active [2] proctype Thief() {
  byte t, s;
  do
  :: t = top;
     s = split;
     if
     :: t >= s -> break
     :: else
     fi;
     atomic { if :: top == t -> top = t + 1; TAKE(t) :: else fi }
  od;
  thieves--
}

active proctype Memory() {
end:
  do
  :: atomic { pending -> FLUSH }
  od
}

active proctype Monitor() {
  timeout;
  REQUIRE(not_run, thieves == 0 && taken[0] == 1 && taken[1] == 1 && taken[2] == 1)
}
