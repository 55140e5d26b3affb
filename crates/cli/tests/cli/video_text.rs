//! Clips, texts and captions as people type them: from drawn clips to a model folder, killed and resumed, split and certified.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use holdall_sample_data::moving_shapes::{self, ClipFormat, MovingShapesConfig};

use crate::training::{Home, RunFiles, assert_same_lines, assert_same_model, on};
use crate::typed::{Answer, BAD_INPUT, DOES_NOT_FIT, DONE, bytes, holdall, holdall_words, start};

/// Drawn clips of a few frames, and the CSV that names them.
pub fn with_clips(count: usize) -> (Home, PathBuf) {
    let home = Home::empty();
    let config = MovingShapesConfig {
        count,
        size: 32,
        frames: 4,
        format: ClipFormat::Npy,
        ..MovingShapesConfig::default()
    };
    let drawn = moving_shapes::write(&home.path("clips"), &config, |_| true).unwrap();
    let labels = drawn.unwrap().labels;
    (home, labels)
}

const TINY: &str = "--model video-text-demo --set video_text.temporal_layers=1 --set video_text.decoder.layers=1 \
    --set data.frames=2 --set data.label=direction --set data.validation.column=split --effective-batch 8 \
    --num-threads 2 --set evaluation.captions=2 --set generation.max_tokens=6";

fn words(csv: &Path, out: &Path, options: &str) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["train".into(), csv.into()];
    words.extend(["--out".into(), out.into()]);
    let options = TINY.split_whitespace().chain(options.split_whitespace());
    words.extend(options.map(OsString::from));
    words
}

fn train(csv: &Path, out: &Path, options: &str) -> Answer {
    holdall_words(words(csv, out, options))
}

fn trained(home: &Home, csv: &Path, name: &str, options: &str) -> RunFiles {
    let run = home.run_named(name);
    train(csv, &run.path, options).exits(DONE);
    run
}

/// Captions by beams and many threads, in the smallest budget that is offered: each thread that has decoded keeps some of it.
fn assert_tight_budget_is_kept(run: &Path, clips: &Path) {
    if cfg!(not(target_os = "linux")) {
        println!("NOT CHECKED whether a budget holds: this system has no /proc");
        return;
    }
    let predict = |memory_mib: u64| {
        let options =
            format!("--device cpu --num-threads 9 --beams 5 --json --memory {memory_mib}MiB");
        let mut words: Vec<OsString> = vec!["predict".into(), run.into(), clips.into()];
        words.extend(options.split(' ').map(OsString::from));
        holdall_words(words)
    };
    let refusal = predict(1).exits(DOES_NOT_FIT).json();
    let smallest = bytes(&refusal, "smallest_budget_bytes").div_ceil(1 << 20);
    for memory_mib in [smallest, smallest + 1] {
        let found = predict(memory_mib).exits(DONE).json();
        assert!(
            bytes(&found, "process_bytes") <= memory_mib << 20,
            "{found}"
        );
    }
}

#[test]
fn clips_are_learned_saved_and_evaluated() {
    let (home, csv) = with_clips(30);
    let out = home.run_named("run");
    let log = train(&csv, &out.path, "--epochs 2 --batch-size 4 --lr 1e-3").exits(DONE);
    for line in [
        "Task: video-text",
        "Weights: RANDOM (preset video-text-demo)",
        "Head label: one of ",
        " clips; ",
    ] {
        assert!(log.stderr.contains(line), "lacks `{line}`\n{}", log.stderr);
    }
    for loss in ["contrastive", "caption", "label"] {
        let losses = out.of_steps(loss);
        assert_eq!(losses.len(), 6);
        assert!(losses.iter().all(|loss| loss.is_finite()), "{loss}");
    }
    for file in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "preprocessor_config.json",
        "generation_config.json",
        "head.safetensors",
        "targets.json",
        "texts.json",
        "decoder/config.json",
        "decoder/model.safetensors",
        "decoder/generation_config.json",
    ] {
        assert!(out.file("model").join(file).is_file(), "lacks {file}");
    }
    assert_tight_budget_is_kept(&out.path, &home.path("clips/clips"));
    let scores = on("eval", &out.path, "--json").exits(DONE).json();
    assert_eq!(scores["clips"], 6);
    assert!(scores["perplexity"].as_f64().is_some(), "{scores}");

    // A saved model goes on with its tokenizers and its heads.
    let model = out.file("model");
    let still = format!(
        "--epochs 1 --batch-size 4 --lr 1e-12 --set train.lr_head=1e-12 --set model={}",
        model.display()
    );
    let options: Vec<&str> = TINY
        .split_whitespace()
        .skip(6)
        .chain(still.split_whitespace())
        .collect();
    let again = home.run_named("again");
    let mut words: Vec<OsString> = vec!["train".into(), csv.clone().into()];
    words.extend(["--out".into(), again.path.clone().into()]);
    words.extend(options.iter().map(OsString::from));
    let log = holdall_words(words).exits(DONE);
    assert!(!log.stderr.contains("RANDOM"), "{}", log.stderr);
    let [before, after] = [&out, &again].map(|run| {
        let scores = on("eval", &run.path, "--json").exits(DONE).json();
        [&scores["video_to_text"]["mrr"], &scores["caption_loss"]].map(|score| score.as_f64())
    });
    for (before, after) in before.iter().zip(after) {
        let (before, after) = (before.unwrap(), after.unwrap());
        assert!((before - after).abs() < 1e-4, "{before} {after}");
    }
}

/// Frames, order and texts are functions of seed, epoch and sample: a run that was killed goes on with the same losses.
#[test]
fn a_killed_run_of_clips_goes_on_with_the_same_losses() {
    let (home, csv) = with_clips(30);
    let options = "--epochs 4 --batch-size 4 --lr 1e-3 --set train.save_every=2 --set data.stride=1 --set train.eval_every=none \
                   --set video_text.same_text=positive";
    let whole = trained(&home, &csv, "whole", options);
    let killed = home.run_named("killed");
    let mut running = start(words(&csv, &killed.path, options));
    killed.wait_until(&mut running, |run| {
        run.num_lines() >= 5 && run.last().exists()
    });
    assert!(running.kill(), "it was done before it was killed");
    assert!(killed.num_lines() < whole.num_lines());
    killed.resume("").exits(DONE);
    assert_same_lines(&killed, &whole);
    assert_same_model(&killed, &whole);
}

/// However it is split, the steps stay together within 1e-4.
#[test]
fn splitting_changes_no_loss_of_clips() {
    let (home, csv) = with_clips(30);
    let [split, whole] = [("split", 3), ("whole", 8)].map(|(name, size)| {
        let options =
            format!("--epochs 2 --batch-size {size} --lr 1e-3 --set train.eval_every=none");
        trained(&home, &csv, name, &options)
    });
    for key in ["loss", "contrastive", "caption", "label"] {
        let [split, whole] = [&split, &whole].map(|run| run.of_steps(key));
        assert_eq!(whole.len(), 6);
        for (split, whole) in split.iter().zip(&whole) {
            assert!((split - whole).abs() < 1e-4, "{key}: {split}, {whole}");
        }
    }
}

#[test]
fn plans_benchmarks_and_certificates_of_clips() {
    let plan = holdall("plan video-text-demo --effective-batch 16 --json").exits(DONE);
    assert_eq!(plan.json()["effective_batch"], 16);
    let shown = holdall("plan video-text --effective-batch 128 --gpu rtx-4060").exits(DONE);
    assert!(
        shown.stdout.contains("video-text on rtx-4060"),
        "{}",
        shown.stdout
    );
    let verify = "verify video-text-demo --effective-batch 5 --split 2 --recompute cheap";
    holdall(verify).exits(DONE);
    let answer = holdall(&format!("{verify} --plain-accumulation")).exits(1);
    assert!(answer.stdout.contains("NOT EXACT"), "{}", answer.stdout);
    let bench = "bench video-text --small --steps 1 --micro-batch 2 --accum 2 --exact --device cpu";
    let bench = holdall(bench).exits(DONE).json();
    assert_eq!(bench["job"], "video-text-small");
    assert_eq!(
        (&bench["micro_batch"], &bench["accum"]),
        (&2.into(), &2.into())
    );
    assert_eq!(bench["samples_per_s"], bench["clips_per_s"]);
    assert_eq!(bench["arena_bytes"], bench["planned_arena_bytes"]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (home, csv) = with_clips(10);
    let out = home.path("out");
    for (options, parts) in [
        (
            "--set video_text.text_model=nowhere",
            vec!["video_text.text_model", "nowhere", "hint: "],
        ),
        (
            "--set video_text.decoder.layers=0",
            vec!["video_text.decoder.layers", "hint: "],
        ),
        (
            "--set losses.caption_weights.[=5",
            vec!["losses.caption_weights", "regular expression", "hint: "],
        ),
        (
            "--set train.dropout=0.1",
            vec!["train.dropout", "CLIP's text tower", "hint: "],
        ),
        (
            "--tokens 4096",
            vec!["tokens: 4096", "hint: leave `tokens` out"],
        ),
    ] {
        train(&csv, &out, options).ends_with(BAD_INPUT, &parts);
        assert!(!out.exists() || fs::read_dir(&out).unwrap().next().is_none());
    }
}

/// Strides, short clips, studies and heads are those of the run, from its model folder alone too: the features that `predict` writes have the
/// ranks that `eval` finds, and its labels the accuracy.
#[test]
fn predict_sees_clips_as_eval_does() {
    let (home, csv) = with_clips(30);
    let text = fs::read_to_string(&csv).unwrap();
    let lines = text.lines().enumerate().map(|(at, line)| match at {
        0 => format!("{line},study"),
        at => format!("{line},s{}", (at - 1) / 2),
    });
    fs::write(&csv, lines.map(|line| line + "\n").collect::<String>()).unwrap();
    let options = "--epochs 2 --batch-size 4 --lr 1e-3 --set data.frames=3 --set data.stride=2 --set data.short_clips=mask \
                   --set data.group=study --set data.num_videos=2";
    let run = trained(&home, &csv, "run", options);
    let model = run.file("model");
    let told = |words: &Path, name: &str| {
        let [out, features] = [home.path(name), home.path(&format!("{name}.npy"))];
        let line = format!(
            "{} --csv {} --features {}",
            csv.display(),
            out.display(),
            features.display()
        );
        on("predict", words, &line).exits(DONE);
        [fs::read(out).unwrap(), fs::read(features).unwrap()]
    };
    let by_run = told(&run.path, "by-run.csv");
    assert!(
        told(&model, "by-model.csv") == by_run,
        "the model folder has all that it takes"
    );

    let read = |bytes: &[u8]| -> Vec<csv::StringRecord> {
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .from_reader(bytes);
        reader.records().map(Result::unwrap).collect()
    };
    let mut rows = read(&by_run[0]);
    let header: Vec<String> = rows.remove(0).iter().map(str::to_owned).collect();
    assert_eq!(
        header.join(","),
        "video,study,caption,label,label_probability"
    );
    let studies: Vec<&str> = rows.iter().map(|row| &row[1]).collect();
    assert_eq!(
        studies,
        (0..15).map(|at| format!("s{at}")).collect::<Vec<_>>()
    );
    assert_eq!(&rows[1][0], "clips/000002.npy");
    // The run's own evaluation wrote captions of two studies that were held out.
    let written = read(&fs::read(run.file("predictions.csv")).unwrap());
    assert_eq!(written.len(), 3);
    for one in &written[1..] {
        let row = rows.iter().find(|row| row[0] == one[0]).unwrap();
        assert_eq!(row[2], one[2], "the caption of {}", &one[0]);
    }

    // Texts as `eval` has them: the captions of each study's first clip.
    let firsts: Vec<Vec<&str>> = text
        .lines()
        .skip(1)
        .step_by(2)
        .map(|line| line.split(',').collect())
        .collect();
    let mut captions: Vec<&str> = Vec::new();
    let mut pairs = String::new();
    for (study, row) in firsts.iter().enumerate() {
        let at = captions.iter().position(|caption| *caption == row[1]);
        let at = at.unwrap_or_else(|| {
            captions.push(row[1]);
            captions.len() - 1
        });
        pairs += &format!("{study},{at}\n");
    }
    let [texts, text_features, listed] =
        ["texts.txt", "texts.npy", "pairs.csv"].map(|name| home.path(name));
    fs::write(&texts, captions.join("\n")).unwrap();
    fs::write(&listed, pairs).unwrap();
    let line = format!(
        "--texts {} --text-features {}",
        texts.display(),
        text_features.display()
    );
    on("predict", &run.path, &line).exits(DONE);
    let beams = format!("{line} --overwrite --beams 2");
    on("predict", &run.path, &beams).refused_with(&["--beams and --texts"]);
    on("predict", &run.path, "clips --labels a,b --template a").refused_with(&["--template `a`"]);
    let line = format!(
        "retrieval --queries {} --gallery {} --pairs {} --json",
        home.path("by-run.csv.npy").display(),
        text_features.display(),
        listed.display()
    );
    let ranks = holdall(&line).exits(DONE).json();
    let scores = on("eval", &run.path, &format!("{} --json", csv.display()))
        .exits(DONE)
        .json();
    for (ours, theirs) in [
        ("query_to_gallery", "video_to_text"),
        ("gallery_to_query", "text_to_video"),
    ] {
        for metric in ["mrr", "median_rank"] {
            let [ours, theirs] =
                [&ranks[ours][metric], &scores[theirs][metric]].map(|one| one.as_f64().unwrap());
            assert!((ours - theirs).abs() < 1e-9, "{metric}: {ours} {theirs}");
        }
    }
    let right = rows
        .iter()
        .zip(&firsts)
        .filter(|(row, truth)| &row[3] == truth[3])
        .count();
    let accuracy = scores["label"]["accuracy"].as_f64().unwrap();
    assert!(
        (right as f64 / 15.0 - accuracy).abs() < 1e-9,
        "{right} {accuracy}"
    );
    let shown = on("predict", &run.path, &csv.display().to_string())
        .exits(DONE)
        .stdout;
    assert!(
        shown.starts_with("s0 (clips/000000.npy): ") && shown.contains("; label "),
        "{shown}"
    );
    // Another stride is another view.
    let line = format!(
        "{} --set data.stride=1 --features {}",
        csv.display(),
        home.path("other.npy").display()
    );
    on("predict", &run.path, &line).exits(DONE);
    assert!(fs::read(home.path("other.npy")).unwrap() != by_run[1]);
}

/// Frames that are packed without loss are those that training sees of the clips: the same losses, scores and captions.
#[test]
fn packed_clips_train_as_the_clips_do() {
    let (home, csv) = with_clips(30);
    let shards = home.path("shards");
    let pack = |options: &str| {
        let line = format!("{} --out {} {options}", csv.display(), shards.display());
        on("data", Path::new("pack"), &line)
    };
    let answer = pack("--frames 2").exits(BAD_INPUT);
    assert!(answer.stderr.contains("--size 256"), "{}", answer.stderr);
    let answer = pack("--frames 2 --size 32 --format webp").exits(BAD_INPUT);
    assert!(answer.stderr.contains("--format npy"), "{}", answer.stderr);
    let options = "--frames 2 --size 32 --per-shard 8 --format npy";
    let answer = pack(options).exits(DONE);
    let said = "30 samples in 4 shards";
    assert!(answer.stdout.contains(said), "{}", answer.stdout);
    let said = "2 frames of each clip are kept, spread over it";
    assert!(answer.stderr.contains(said), "{}", answer.stderr);
    // What is there is compared, and what is lost is packed again, byte for byte.
    let shard = shards.join("clips-000003.tar");
    let before = fs::read(&shard).unwrap();
    let manifest = shards.join("pack.json");
    let mut json: serde_json::Value =
        serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    json["shards"].as_array_mut().unwrap().truncate(2);
    fs::write(&manifest, json.to_string()).unwrap();
    fs::remove_file(&shard).unwrap();
    let answer = pack(options).exits(DONE);
    let said = "2 shards kept, as written";
    assert!(answer.stdout.contains(said), "{}", answer.stdout);
    assert_eq!(fs::read(&shard).unwrap(), before);
    pack("--frames 3 --size 32 --per-shard 8 --format npy").exits(BAD_INPUT);

    on(
        "data",
        Path::new("check"),
        &format!("{} --set data.frames=2", shards.display()),
    )
    .exits(DONE);
    let options = "--epochs 2 --batch-size 4 --lr 1e-3";
    let expected = trained(&home, &csv, "expected", options);
    let run = trained(&home, &shards, "packed", options);
    assert_same_lines(&run, &expected);
    let scores = |run: &RunFiles| {
        let scores = on("eval", &run.path, "--json").exits(DONE).json();
        ["perplexity", "video_to_text", "caption_loss"].map(|key| scores[key].clone())
    };
    assert_eq!(scores(&run), scores(&expected));
    let captions = |run: &RunFiles, clips: &Path| -> Vec<String> {
        let line = format!("{} --json", clips.display());
        let answer = on("predict", &run.path, &line).exits(DONE).json();
        let said = answer["predictions"].as_array().unwrap().iter();
        said.map(|one| one["caption"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(captions(&run, &shards), captions(&expected, &csv));
    // A shard that was replaced is noticed.
    let mut bytes = fs::read(&shard).unwrap();
    let last = bytes.len() - 2048;
    bytes[last] ^= 1;
    fs::write(&shard, bytes).unwrap();
    let answer = pack("--frames 2 --size 32 --per-shard 8 --format npy").exits(BAD_INPUT);
    let said = "clips-000003.tar: expected the shard that was written";
    assert!(answer.stderr.contains(said), "{}", answer.stderr);
}
