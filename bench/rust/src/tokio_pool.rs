//! Tokio's multi-threaded runtime, without its I/O and time drivers: tasks only.

use crate::{count, woken, Impl, NOTHING};
use std::os::raw::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use tokio::runtime::{Builder, Runtime};

/// Made by `start`, never dropped: the process ends with it.
static RUNTIME: AtomicPtr<Runtime> = AtomicPtr::new(null_mut());

fn runtime() -> &'static Runtime {
    unsafe { &*RUNTIME.load(Ordering::Acquire) }
}

extern "C" fn start(threads: c_int) {
    let runtime = Builder::new_multi_thread().worker_threads(threads as usize).build().unwrap();
    RUNTIME.store(Box::into_raw(Box::new(runtime)), Ordering::Release);
}

extern "C" fn submit(_producer: c_int, n: i64) {
    let handle = runtime().handle();
    for _ in 0..n {
        handle.spawn(async { count() });
    }
}

extern "C" fn wake() {
    runtime().spawn(async { woken() });
}

extern "C" fn spawn_await(n: i64) {
    let parent = runtime().spawn(async move {
        for _ in 0..n {
            tokio::spawn(async { count() }).await.unwrap();
        }
    });
    runtime().block_on(parent).unwrap();
}

extern "C" fn yield_now(tasks: c_int, times: c_int) {
    let spawned: Vec<_> = (0..tasks)
        .map(|_| {
            runtime().spawn(async move {
                for _ in 0..times {
                    tokio::task::yield_now().await;
                    count();
                }
            })
        })
        .collect();
    runtime().block_on(async {
        for task in spawned {
            task.await.unwrap();
        }
    });
}

const VERSION: *const c_char =
    concat!("tokio ", env!("TOKIO_VERSION"), "\0").as_ptr() as *const c_char;

pub fn all() -> Impl {
    Impl {
        version: VERSION,
        start: Some(start),
        submit: Some(submit),
        wake: Some(wake),
        spawn_await: Some(spawn_await),
        yield_now: Some(yield_now),
        ..NOTHING
    }
}
