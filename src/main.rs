//! The command `tollgate`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The allocator asks for huge pages, of which each touch makes 2 MiB resident. Without the switch the process
    // takes more memory than its bounds count, and runs all the same.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    tollgate::cli::run()
}
