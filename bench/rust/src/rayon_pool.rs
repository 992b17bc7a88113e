//! Rayon: join, spawn, scope, and its two sorts.

use crate::{count, woken, Impl, NOTHING};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::os::raw::{c_char, c_int};
use std::ptr::null_mut;
use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Made by `start`, never dropped: the process ends with it.
static POOL: AtomicPtr<ThreadPool> = AtomicPtr::new(null_mut());

fn pool() -> &'static ThreadPool {
    unsafe { &*POOL.load(Ordering::Acquire) }
}

extern "C" fn start(threads: c_int) {
    let pool = ThreadPoolBuilder::new().num_threads(threads as usize).build().unwrap();
    POOL.store(Box::into_raw(Box::new(pool)), Ordering::Release);
}

fn fib_call(n: c_int) -> i64 {
    if n < 2 {
        return n as i64;
    }
    let (left, right) = rayon::join(|| fib_call(n - 1), || fib_call(n - 2));
    left + right
}

extern "C" fn fib(n: c_int) -> i64 {
    pool().install(|| fib_call(n))
}

fn tree_call(depth: c_int) -> i64 {
    if depth == 0 {
        return 1;
    }
    let (left, right) = rayon::join(|| tree_call(depth - 1), || tree_call(depth - 1));
    1 + left + right
}

extern "C" fn tree(depth: c_int) -> i64 {
    pool().install(|| tree_call(depth))
}

extern "C" fn submit(_producer: c_int, n: i64) {
    let pool = pool();
    for _ in 0..n {
        pool.spawn(count);
    }
}

extern "C" fn wake() {
    pool().spawn(woken);
}

extern "C" fn spawn_await(n: i64) {
    pool().install(|| {
        for _ in 0..n {
            rayon::scope(|scope| scope.spawn(|_| count()));
        }
    });
}

extern "C" fn join_await(n: i64) {
    pool().install(|| {
        for _ in 0..n {
            rayon::join(|| (), count);
        }
    });
}

extern "C" fn sort_unstable(items: *mut u64, n: usize) {
    let items = unsafe { slice::from_raw_parts_mut(items, n) };
    pool().install(|| items.par_sort_unstable());
}

extern "C" fn sort_stable(items: *mut u64, n: usize) {
    let items = unsafe { slice::from_raw_parts_mut(items, n) };
    pool().install(|| items.par_sort());
}

const VERSION: *const c_char =
    concat!("rayon ", env!("RAYON_VERSION"), "\0").as_ptr() as *const c_char;

/// Everything; `sort` is `par_sort_unstable`.
pub fn unstable() -> Impl {
    Impl {
        version: VERSION,
        start: Some(start),
        fib: Some(fib),
        tree: Some(tree),
        submit: Some(submit),
        wake: Some(wake),
        spawn_await: Some(spawn_await),
        sort: Some(sort_unstable),
        ..NOTHING
    }
}

/// `spawn_await` by `join` instead of `scope`: cheaper, but the child's number is fixed.
pub fn join() -> Impl {
    Impl { version: VERSION, start: Some(start), spawn_await: Some(join_await), ..NOTHING }
}

/// `par_sort` alone.
pub fn stable() -> Impl {
    Impl { version: VERSION, start: Some(start), sort: Some(sort_stable), ..NOTHING }
}
