//! The command `tollgate`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Touching a huge page makes 2 MiB resident, more than the memory bounds account for. The allocator requests none
    // (its feature `no_thp`), but the system may use them for all memory. If the call fails, the process runs with a
    // higher memory use.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    tollgate::cli::run()
}
