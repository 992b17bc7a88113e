//! Rayon and Tokio: `peer_rust rayon|rayon_join|rayon_stable|tokio <workload> <threads> <samples>`.
//!
//! The measuring is done by the suite's harness in C (../harness.h), as for every other peer.

mod rayon_pool;
mod tokio_pool;

use std::env;
use std::ffi::CString;
use std::os::raw::{c_char, c_int, c_void};
use std::process::exit;

/// `bench_impl` of harness.h.
#[repr(C)]
pub struct Impl {
    pub version: *const c_char,
    pub start: Option<extern "C" fn(c_int)>,
    pub stop: Option<extern "C" fn()>,
    pub fib: Option<extern "C" fn(c_int) -> i64>,
    pub tree: Option<extern "C" fn(c_int) -> i64>,
    pub submit: Option<extern "C" fn(c_int, i64)>,
    pub wake: Option<extern "C" fn()>,
    pub reap: Option<extern "C" fn()>,
    pub spawn_await: Option<extern "C" fn(i64)>,
    pub yield_now: Option<extern "C" fn(c_int, c_int)>,
    pub sort: Option<extern "C" fn(*mut u64, usize)>,
    pub one_submitter: bool,
    pub json: *const c_void,
    pub topk: *const c_void,
}

pub const NOTHING: Impl = Impl {
    version: std::ptr::null(),
    start: None,
    stop: None,
    fib: None,
    tree: None,
    submit: None,
    wake: None,
    reap: None,
    spawn_await: None,
    yield_now: None,
    sort: None,
    one_submitter: false,
    json: std::ptr::null(),
    topk: std::ptr::null(),
};

mod harness {
    use super::*;

    #[link(name = "harness", kind = "static")]
    extern "C" {
        pub fn bench_main(argc: c_int, argv: *const *const c_char, of: *const Impl) -> c_int;
        pub fn bench_count();
        pub fn bench_woken();
    }
}

/// An empty task's body.
pub fn count() {
    unsafe { harness::bench_count() }
}

/// The body of the task of `wake`.
pub fn woken() {
    unsafe { harness::bench_woken() }
}

const NAMES: &str = "rayon|rayon_join|rayon_stable|tokio";

fn main() {
    let args: Vec<String> = env::args().collect();
    let measured = match args.get(1).map(String::as_str) {
        Some("rayon") => rayon_pool::unstable(),
        Some("rayon_join") => rayon_pool::join(),
        Some("rayon_stable") => rayon_pool::stable(),
        Some("tokio") => tokio_pool::all(),
        _ => {
            eprintln!("usage: {} {} <workload> <threads> <samples>", args[0], NAMES);
            exit(1);
        }
    };
    let rest: Vec<CString> = args[1..].iter().map(|a| CString::new(a.as_str()).unwrap()).collect();
    let argv: Vec<*const c_char> = rest.iter().map(|a| a.as_ptr()).collect();
    exit(unsafe { harness::bench_main(argv.len() as c_int, argv.as_ptr(), &measured) });
}
