//! `holdall model get`, against a hub on this machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::hub_server::{COMMIT, HubServer};
use crate::training::Home;
use crate::typed::{Answer, BAD_INPUT, DONE, FOUND, holdall_with};

const TOKEN: &str = "hf_secret";

/// A hub with a model that was trained here, and a home for what comes from it.
struct Hub {
    home: Home,
    server: HubServer,
}

impl Hub {
    /// `None`, loudly, where there is no `curl`.
    fn new() -> Option<Hub> {
        if Command::new("curl").arg("--version").output().is_err() {
            println!("SKIPPED: curl is not installed");
            return None;
        }
        let home = Home::with_cars(8);
        let run = home.trained("run", "--effective-batch 4 --epochs 1");
        let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for name in [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "preprocessor_config.json",
        ] {
            files.insert(
                name.to_owned(),
                fs::read(run.file("model").join(name)).unwrap(),
            );
        }
        files.insert("pytorch_model.bin".to_owned(), vec![1; 100]);
        files.insert("README.md".to_owned(), b"# A model".to_vec());
        Some(Hub {
            server: HubServer::start(files),
            home,
        })
    }

    fn cache(&self) -> PathBuf {
        self.home.path("hf/hub/models--somebody--clip")
    }

    fn snapshot(&self) -> PathBuf {
        self.cache().join("snapshots").join(COMMIT)
    }

    fn run(&self, line: &str, further: &[(&str, &str)]) -> Answer {
        let folder = self.home.path("hf");
        let mut variables = vec![
            ("HF_HOME", folder.to_str().unwrap()),
            ("HF_ENDPOINT", &self.server.endpoint),
            ("HF_TOKEN", TOKEN),
            ("HF_HUB_CACHE", ""),
            ("HUGGINGFACE_HUB_CACHE", ""),
            ("HF_HUB_OFFLINE", ""),
            ("NO_PROXY", "127.0.0.1"),
        ];
        variables.extend_from_slice(further);
        holdall_with(&variables, line)
    }

    fn get(&self) -> Answer {
        self.run("model get somebody/clip --json", &[])
    }

    /// Changes the files of `main`.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Vec<u8>>)) {
        let mut shelf = self.server.shelf.lock().unwrap();
        change(shelf.revisions.get_mut("main").unwrap());
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_model_comes_into_the_cache_and_is_found_by_its_name() {
    let Some(hub) = Hub::new() else { return };
    hub.run("plan somebody/clip --device cpu", &[])
        .refused_with(&["somebody/clip", "hint: holdall model get somebody/clip"]);
    let found = hub.get().exits(DONE).json();
    assert_eq!(
        found["folder"],
        Value::from(hub.snapshot().to_str().unwrap())
    );
    assert_eq!(found["commit"], COMMIT);
    let expected = [
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "tokenizer.json",
    ];
    assert_eq!(names_in(&hub.snapshot()), expected, "no pickle, no page");
    let main = fs::read_to_string(hub.cache().join("refs/main")).unwrap();
    assert_eq!(main, COMMIT);
    let weights = fs::read(hub.snapshot().join("model.safetensors")).unwrap();
    assert_eq!(
        weights,
        fs::read(hub.home.path("run/model/model.safetensors")).unwrap()
    );
    // The token goes to the hub, and not to where the hub sends for weights.
    for (path, _, token) in hub.server.asked() {
        let expected = (!path.starts_with("/storage/")).then(|| format!("Bearer {TOKEN}"));
        assert_eq!(token, expected, "{path}");
    }
    let planned = hub
        .run("plan somebody/clip --device cpu --effective-batch 8", &[])
        .exits(DONE);
    assert!(
        planned.stdout.contains("Weights: pretrained from"),
        "{}",
        planned.stdout
    );
    // What is there does not come again.
    let again = hub.get().exits(DONE).json();
    assert_eq!(again["downloaded_bytes"], 0);
    assert_eq!(hub.server.asked().len(), 1, "the list alone");
    let offline = [("HF_HUB_OFFLINE", "1")];
    hub.run("model get somebody/clip --json", &offline)
        .exits(DONE);
    hub.run("model get somebody/other", &offline)
        .refused_with(&["somebody/other", "HF_HUB_OFFLINE"]);
    assert_eq!(hub.server.asked(), [], "offline means offline");
}

#[test]
fn what_was_stopped_goes_on_and_what_is_damaged_is_thrown_away() {
    let Some(hub) = Hub::new() else { return };
    hub.server.shelf.lock().unwrap().cut = Some(("model.safetensors".to_owned(), 1000));
    hub.get()
        .ends_with(FOUND, &["the same command goes on from there"]);
    let part: Vec<String> = names_in(&hub.cache().join("blobs"));
    assert!(
        part.len() == 1 && part[0].ends_with(".incomplete"),
        "{part:?}"
    );
    assert_eq!(names_in(&hub.snapshot()), [""; 0], "nothing looks whole");
    hub.server.asked();
    hub.get().exits(DONE);
    let ranges: Vec<String> = hub
        .server
        .asked()
        .into_iter()
        .filter_map(|(_, range, _)| range)
        .collect();
    assert!(ranges.contains(&"bytes=1000-".to_owned()), "{ranges:?}");
    let weights = fs::read(hub.snapshot().join("model.safetensors")).unwrap();
    assert_eq!(
        weights,
        fs::read(hub.home.path("run/model/model.safetensors")).unwrap()
    );
    for (name, hash) in [
        ("model.safetensors", "SHA-256"),
        ("tokenizer.json", "git's SHA-1"),
    ] {
        fs::remove_dir_all(hub.cache()).unwrap();
        hub.server.shelf.lock().unwrap().damaged = Some(name.to_owned());
        hub.get().ends_with(FOUND, &[name, hash, "it was removed"]);
        assert!(!hub.snapshot().join("config.json").exists());
        let left = names_in(&hub.cache().join("blobs"));
        assert!(
            left.iter().all(|one| !one.ends_with("incomplete")),
            "{left:?}"
        );
    }
}

#[test]
fn only_safetensors_are_taken() {
    let Some(hub) = Hub::new() else { return };
    let mut converted = BTreeMap::new();
    hub.change(|files| {
        converted = files.clone();
        files.remove("model.safetensors");
    });
    let words = [
        "pytorch_model.bin",
        "pickle",
        "AutoModel.from_pretrained(\"somebody/clip\")",
    ];
    hub.get().refused_with(&words);
    // What somebody offers is not taken; what Hugging Face's converter offers is.
    let mut offer = json!({"num": 4, "isPullRequest": true, "status": "open",
        "title": "Adding `safetensors` variant of this model", "author": {"name": "somebody"}});
    let offers = |offer: &Value| {
        hub.server.shelf.lock().unwrap().discussions = json!({"discussions": [offer]})
    };
    hub.server
        .shelf
        .lock()
        .unwrap()
        .revisions
        .insert("refs/pr/4".to_owned(), converted);
    offers(&offer);
    hub.get().exits(BAD_INPUT);
    offer["author"]["name"] = "SFconvertbot".into();
    offers(&offer);
    let answer = hub.get().exits(DONE);
    assert!(answer.stderr.contains("refs/pr/4"), "{}", answer.stderr);
    assert_eq!(
        fs::read_to_string(hub.cache().join("refs/refs/pr/4")).unwrap(),
        COMMIT
    );
    let planned = hub
        .run("plan somebody/clip --device cpu --effective-batch 8", &[])
        .exits(DONE);
    assert!(
        planned.stdout.contains("Weights: pretrained from"),
        "{}",
        planned.stdout
    );
    for (name, part) in [("clip", "OWNER/NAME"), ("a/../b", "OWNER/NAME")] {
        hub.run(&format!("model get {name}"), &[])
            .refused_with(&[name, part]);
    }
    hub.run("model get somebody/clip --revision ../../x", &[])
        .refused_with(&["--revision", "a branch, a tag or a commit"]);
    let unknown = hub.run("model get somebody/clip --revision v9", &[]);
    unknown.ends_with(FOUND, &["404", "check the name, and --revision"]);
}
