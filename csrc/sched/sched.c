#include "sched/sched.h"

#include "base/alloc.h"
#include "base/error.h"
#include "sched/guard.h"
#include "sched/post.h"
#include "sched/scope.h"

enum { FORKS_PUBLIC = 4 };

static void sit(tp_worker *none, tp_work *work) {
  (void)none;
  tp_worker_run((tp_worker *)((char *)work - offsetof(tp_worker, sit)));
}

static int init_seat(tp_sched *s, unsigned i) {
  tp_worker *w = &s->seats[i];
  w->sched = s;
  w->index = i;
  w->average_ns = 50 * TP_NS_PER_US; /* a guess until the first budget is over */
  w->interval = w->until_global = (unsigned)(TP_NS_PER_MS / w->average_ns);
  w->sit.run = sit;
  tp_segments_init(w);
  tp_rng_seed(&w->rng, i + 1);
  /* One public job for each other worker, as far as that stays cheap: private ones are out of reach. */
  unsigned keep = s->workers < FORKS_PUBLIC ? s->workers : FORKS_PUBLIC;
  return tp_deque_init(&w->front, keep);
}

tp_sched *tp_sched_new(const tp_sched_options *o) {
  tp_sched *s = tp_alloc(sizeof *s);
  if (!s) return NULL;
  s->workers = o->workers;
  s->idle_yield = o->idle_yield;
  s->pin = o->pin;
  s->park_timeout_ms = o->park_timeout_ms;
  s->searchers_most = o->workers > 2 ? o->workers / 2 : 1;
  sched_getaffinity(0, sizeof s->cpus, &s->cpus);
  tp_threads_init(&s->threads, o->workers + o->blocking);
  for (unsigned i = 0; i < TP_INLETS; i++) tp_inlet_init(&s->inlets[i], i);
  s->seats = tp_alloc((o->workers + 1) * sizeof *s->seats);
  bool ok = s->seats && tp_sleep_init(&s->sleep, o->workers + 1) == 0;
  for (unsigned i = 0; ok && i <= o->workers; i++) ok = init_seat(s, i) == 0;
  /* Workers begin as active ones that find nothing, so the counters are right from the beginning. */
  for (unsigned i = 0; ok && i < o->workers; i++)
    ok = tp_threads_run(&s->threads, &s->seats[i].sit, TP_THREAD_SEAT) == 0;
  if (ok) return s;
  tp_sched_stop(s);
  tp_sched_free(s);
  return NULL;
}

void tp_sched_stop(tp_sched *s) {
  tp_store(&s->stop, true, seq_cst); /* seen in step 6 by whoever sets its bit after we looked */
  /* A seat without a scheduler was not reached by a creation that failed. */
  for (unsigned i = 0; s->seats && i < s->workers && s->seats[i].sched; i++)
    tp_wake_seat(&s->seats[i]);
  tp_threads_stop(&s->threads);
  tp_alarm_stop(s); /* last: until then a worker may start it */
}

void tp_sched_free(tp_sched *s) {
  for (unsigned i = 0; i <= s->workers && s->seats; i++) {
    tp_deque_free(&s->seats[i].front);
    tp_spawned_free(&s->seats[i]);
    tp_segments_free(&s->seats[i]);
    tp_signal_stack_free(&s->seats[i].signal_stack);
  }
  tp_sleep_free(&s->sleep);
  tp_free(s->seats);
  tp_free(s);
}
