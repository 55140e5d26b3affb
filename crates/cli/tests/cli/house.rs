//! The tree keeps its order: crates and modules import in one direction. Reads the sources and manifests, compiles nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Which crates each crate uses; those of tests alone are left out.
const ARROWS: [(&str, &str); 16] = [
    ("buffers", ""),
    (
        "cli",
        "buffers data device files metrics models onnx plan processes sample-data telemetry train",
    ),
    ("data", "buffers files"),
    ("device", "files graph plan processes"),
    ("faults", ""),
    ("files", ""),
    ("graph", ""),
    ("metrics", "device files"),
    ("models", "files graph"),
    ("onnx", "files graph"),
    ("plan", "graph"),
    ("processes", "files"),
    ("sample-data", "data files"),
    ("software-card", ""),
    ("telemetry", "files"),
    (
        "train",
        "data device files graph metrics models onnx plan processes telemetry",
    ),
];

/// Number of modules in a crate's largest cycle, where it has one.
const LARGEST_CYCLES: [(&str, usize); 8] = [
    ("cli", 2),
    ("device", 2),
    ("graph", 2),
    ("models", 3),
    ("onnx", 3),
    ("plan", 3),
    ("processes", 2),
    ("train", 4),
];

type Modules = BTreeMap<String, BTreeSet<String>>;

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn crates_use_each_other_in_one_direction() {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(crates()).unwrap() {
        let folder = entry.unwrap().path();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let mut used = BTreeSet::new();
        let mut is_used = false;
        for line in manifest.lines() {
            if line.starts_with('[') {
                is_used = line.ends_with("dependencies]") && !line.contains("dev-dependencies");
            } else if let Some(name) = line.strip_prefix("holdall-").filter(|_| is_used) {
                let end = name.find(['.', ' ', '=']).unwrap();
                used.insert(name[..end].to_owned());
            }
        }
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        found.insert(name, used);
    }
    for (name, used) in ARROWS {
        let expected = used.split_whitespace().map(str::to_owned);
        let expected: BTreeSet<String> = expected.collect();
        assert_eq!(
            found.remove(name),
            Some(expected),
            "crates that {name} uses"
        );
    }
    assert_eq!(found, BTreeMap::new(), "crates that are not among ARROWS");
}

#[test]
fn cycles_of_modules_do_not_grow() {
    let largest = BTreeMap::from(LARGEST_CYCLES);
    for (name, _) in ARROWS {
        let mut modules = Modules::new();
        read_modules(&crates().join(name).join("src"), None, &mut modules);
        let cycle = largest_cycle(&modules);
        let most = largest.get(name).copied().unwrap_or(1);
        assert!(
            cycle.len() <= most,
            "{name}: expected cycles of at most {most} modules, found {cycle:?}\nhint: move what points the wrong way"
        );
    }
}

#[test]
fn a_cycle_of_modules_is_found() {
    let mut modules = Modules::new();
    for (name, text) in [
        ("a", "use crate::b::B;\n// crate::d\nuse std::fmt;"),
        ("b", "use crate::{\n    c::{C, d},\n    e,\n};"),
        ("c", "fn f() -> crate::a::A {}"),
        ("d", "#[cfg(test)]\nmod tests {\n    use crate::a;\n}"),
        ("e", "use crate::d::D;"),
    ] {
        modules.insert(name.to_owned(), references(text));
    }
    let expected = ["a", "b", "c"].map(str::to_owned);
    assert_eq!(largest_cycle(&modules), BTreeSet::from(expected));
}

/// Adds what the files of a folder import to its module: the top one that they belong to.
fn read_modules(folder: &Path, module: Option<&str>, modules: &mut Modules) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let is_root = module.is_none() && ["lib", "main"].contains(&stem);
        if stem == "tests" || is_root {
            continue;
        }
        let module = module.unwrap_or(stem);
        if path.is_dir() {
            read_modules(&path, Some(module), modules);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let found = modules.entry(module.to_owned()).or_default();
            found.extend(references(&text));
        }
    }
}

/// Modules of its crate that a file names, outside of comments and of the tests at its end.
fn references(text: &str) -> BTreeSet<String> {
    let is_tests = |line: &&str| line.starts_with("mod tests {");
    let lines = text.lines().take_while(|line| !is_tests(line));
    let code: Vec<&str> = lines
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect();
    let code = code.join("\n");
    let word = |text: &str| {
        let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_';
        text.trim_start()
            .split(|letter| !is_letter(letter))
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let mut found = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        let Some(group) = after.strip_prefix('{') else {
            found.insert(word(after));
            continue;
        };
        found.insert(word(group));
        let mut depth = 0;
        for (at, letter) in group.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    found.insert(word(&group[at + 1..]));
                }
                _ => {}
            }
        }
    }
    found
}

/// The largest set of modules each of which reaches all others; empty if there is none.
fn largest_cycle(modules: &Modules) -> BTreeSet<String> {
    let reached_from = |start: &String| {
        let mut reached = BTreeSet::new();
        let mut open = vec![start];
        while let Some(module) = open.pop() {
            for next in &modules[module] {
                if modules.contains_key(next) && next != module && reached.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        reached
    };
    let reached: Modules = modules
        .keys()
        .map(|module| (module.clone(), reached_from(module)))
        .collect();
    let cycle_of = |module: &String| -> BTreeSet<String> {
        let both = reached[module].iter();
        both.filter(|other| reached[*other].contains(module))
            .cloned()
            .collect()
    };
    let cycles = modules.keys().map(cycle_of);
    cycles.max_by_key(BTreeSet::len).unwrap_or_default()
}
