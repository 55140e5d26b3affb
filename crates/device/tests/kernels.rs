//! Every kernel file compiles for every architecture; no card is needed for that, only NVRTC.

use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use holdall_device::cuda::compile::{self, CompileError};
use holdall_device::cuda::libraries::{self, Missing};

const ARCHITECTURES: [&str; 7] = [
    "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120",
];

/// Number formats that files are compiled in for an architecture. What depends on the architecture does so in all of them:
/// one is enough but for the oldest cards and those that this was run on. The rest would take minutes.
fn elements(architecture: &str) -> &'static [u32] {
    match architecture {
        "sm_75" | "sm_90" => &[0, 1, 2],
        _ => &[2],
    }
}

/// Writes a line where it is seen: of a test that passes, what `eprintln` writes is swallowed.
fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("stderr can be written");
}

/// Whether NVRTC is here. Without it nothing is tested, which must not go unseen.
fn nvrtc_is_here() -> bool {
    let missing = match libraries::find_nvrtc() {
        Ok(_) => return true,
        Err(missing) => missing,
    };
    assert!(matches!(missing, Missing::Libraries { .. }), "{missing}");
    assert!(
        std::env::var_os("HOLDALL_REQUIRE_NVRTC").is_none(),
        "HOLDALL_REQUIRE_NVRTC is set: {missing}"
    );
    say("SKIPPED: kernels were not compiled: NVRTC is not here");
    false
}

/// Name and text of each kernel file, by name.
fn kernel_files() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda/kernels");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&folder).expect("kernels are in the repository") {
        let path = entry.expect("the folder can be read").path();
        if path.extension().is_some_and(|extension| extension == "cu") {
            let name = path
                .file_name()
                .expect("it has an extension")
                .to_string_lossy()
                .into_owned();
            files.push((
                name,
                std::fs::read_to_string(&path).expect("kernels are text"),
            ));
        }
    }
    files.sort();
    assert!(!files.is_empty(), "no .cu file in {}", folder.display());
    files
}

#[test]
fn every_kernel_compiles_for_every_architecture() {
    if !nvrtc_is_here() {
        return;
    }
    // A toolkit before 12.8 does not know the newest cards: those are left out, aloud, where that is allowed.
    let known = compile::architectures().expect("NVRTC is here");
    let (architectures, unknown): (Vec<_>, Vec<_>) = ARCHITECTURES
        .into_iter()
        .partition(|architecture| known.iter().any(|other| other == architecture));
    if !unknown.is_empty() {
        assert!(
            std::env::var_os("HOLDALL_REQUIRE_NVRTC").is_none(),
            "NVRTC does not know {unknown:?}"
        );
        say(&format!(
            "SKIPPED: kernels were not compiled for {unknown:?}: NVRTC does not know them"
        ));
    }

    let mut jobs = Vec::new();
    for (name, text) in kernel_files() {
        let source = compile::source(&name, &text);
        for &architecture in &architectures {
            let each = elements(architecture).iter();
            jobs.extend(each.map(|&element| (source.clone(), name.clone(), architecture, element)));
        }
    }
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let num_threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..num_threads {
            scope.spawn(|| {
                while let Some((source, name, architecture, element)) =
                    jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    match compile::to_cubin(source, name, architecture, *element) {
                        // The message has the file, the architecture, the element and NVRTC's log.
                        Err(error) => failures
                            .lock()
                            .expect("no thread panics")
                            .push(error.to_string()),
                        Ok(cubin) => assert!(
                            cubin.starts_with(b"\x7fELF"),
                            "{name}: a cubin is an ELF file"
                        ),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no thread panics");
    assert!(
        failures.is_empty(),
        "{} of {} failed:\n{}",
        failures.len(),
        jobs.len(),
        failures.join("\n\n")
    );
}

// Hopper's own products are in no cubin for `sm_90`.
#[test]
fn hoppers_products_compile() {
    if !nvrtc_is_here() {
        return;
    }
    let known = compile::architectures().expect("NVRTC is here");
    if !known.iter().any(|architecture| architecture == "sm_90") {
        say("SKIPPED: NVRTC does not know sm_90");
        return;
    }
    let files = kernel_files();
    let (name, text) = files
        .iter()
        .find(|(name, _)| name == "ranks.cu")
        .expect("it is there");
    let compiled = |architecture| {
        let cubin = compile::to_cubin(&compile::source(name, text), name, architecture, 1);
        cubin.unwrap_or_else(|error| panic!("{error}"))
    };
    let has = |cubin: &[u8], kernel: &str| {
        cubin
            .windows(kernel.len())
            .any(|part| part == kernel.as_bytes())
    };
    assert!(has(&compiled("sm_90a"), "rank_count_wide"));
    assert!(!has(&compiled("sm_90"), "rank_count_wide"));
}

#[test]
fn a_refused_source_says_where() {
    if !nvrtc_is_here() {
        return;
    }
    let source = compile::source(
        "broken.cu",
        "\nextern \"C\" __global__ void broken() { wrong; }",
    );
    match compile::to_cubin(&source, "broken.cu", "sm_80", 1) {
        Err(CompileError::Refused {
            name,
            architecture,
            element: 1,
            log,
            ..
        }) => {
            assert_eq!(
                (name.as_str(), architecture.as_str()),
                ("broken.cu", "sm_80")
            );
            assert!(
                log.contains("broken.cu(2)") && log.contains("wrong"),
                "{log}"
            );
        }
        other => panic!("a wrong source was taken: {other:?}"),
    }
}

#[test]
fn the_cache_gives_what_was_compiled_and_survives_broken_files() {
    if !nvrtc_is_here() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = compile::source(
        "kept.cu",
        "extern \"C\" __global__ void kept(float *x) { x[threadIdx.x] += 1.0f; }",
    );
    let get = || {
        compile::cached_in(folder.path(), &source, "kept.cu", "sm_80", 0)
            .expect("the source is right")
    };
    let files = || -> Vec<_> {
        let entries = std::fs::read_dir(folder.path()).expect("the folder is there");
        entries
            .map(|entry| entry.expect("the folder can be read").path())
            .collect()
    };
    let compiled = get();
    let [file] = &files()[..] else {
        panic!("one file is kept: {:?}", files())
    };
    let kept = std::fs::read(file).expect("it was written");
    assert_eq!(get(), compiled);
    for broken in [&kept[..kept.len() / 2], b"", b"something else"] {
        std::fs::write(file, broken).expect("a temporary folder can be written");
        assert_eq!(get(), compiled);
        assert_eq!(std::fs::read(file).expect("it was written again"), kept);
    }

    // A file where the folder should be: nothing can be kept, and the cubin comes anyway.
    let nowhere = compile::cached_in(file, &source, "kept.cu", "sm_80", 0);
    assert_eq!(nowhere, Ok(compiled));
}
