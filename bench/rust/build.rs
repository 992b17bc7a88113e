//! Links the suite's harness (libharness.a in $BENCH_BUILD) and notes the versions of the crates.

use std::{env, fs};

fn version(lock: &str, name: &str) -> String {
    let mut lines = lock.lines().skip_while(|l| *l != format!("name = \"{}\"", name));
    let line = lines.nth(1).unwrap_or("");
    line.trim_start_matches("version = ").trim_matches('"').to_string()
}

fn main() {
    let build = env::var("BENCH_BUILD").expect("BENCH_BUILD: where libharness.a is");
    println!("cargo:rerun-if-env-changed=BENCH_BUILD");
    println!("cargo:rerun-if-changed={}/libharness.a", build);
    println!("cargo:rustc-link-search=native={}", build);
    println!("cargo:rustc-link-lib=static=harness");

    let lock = fs::read_to_string("Cargo.lock").unwrap_or_default();
    println!("cargo:rerun-if-changed=Cargo.lock");
    println!("cargo:rustc-env=RAYON_VERSION={}", version(&lock, "rayon"));
    println!("cargo:rustc-env=TOKIO_VERSION={}", version(&lock, "tokio"));
}
