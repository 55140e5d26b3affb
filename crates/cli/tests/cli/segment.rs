//! Segmentation as people type it: from pictures and masks to a model folder, and what that is good for.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use image::{GrayImage, Luma, Rgb, RgbImage};
use serde_json::Value;

use crate::training::{Home, RunFiles, assert_same_lines, assert_same_model};
use crate::typed::{Answer, BAD_INPUT, DOES_NOT_FIT, DONE, holdall_words, start};

/// Bright disks on a dark ground, each picture its own: `images/N.png` and `masks/N.png`.
pub fn with_disks(count: u32, size: [u32; 2]) -> (Home, PathBuf) {
    with_disks_of(count, &[size])
}

/// The same of pictures that have these heights and widths in turn.
fn with_disks_of(count: u32, sizes: &[[u32; 2]]) -> (Home, PathBuf) {
    let home = Home::empty();
    let folder = home.path("disks");
    for part in ["images", "masks"] {
        fs::create_dir_all(folder.join(part)).unwrap();
    }
    for (number, [height, width]) in (0..count).zip(sizes.iter().copied().cycle()) {
        let center = [
            13 + number * 7 % (height - 24),
            12 + number * 11 % (width - 24),
        ];
        let radius = 5 + number % 6;
        let inside = |x: u32, y: u32| {
            let (down, across) = (y.abs_diff(center[0]), x.abs_diff(center[1]));
            down * down + across * across <= radius * radius
        };
        let noise = |x: u32, y: u32| (x * 7 + y * 13 + x * y + number * 31) % 40;
        let image = RgbImage::from_fn(width, height, |x, y| {
            let light = noise(x, y) as u8 + if inside(x, y) { 150 } else { 40 };
            Rgb([light, light / 2, 20])
        });
        let mask = GrayImage::from_fn(width, height, |x, y| {
            Luma([if inside(x, y) { 255 } else { 0 }])
        });
        image
            .save(folder.join(format!("images/{number}.png")))
            .unwrap();
        mask.save(folder.join(format!("masks/{number}.png")))
            .unwrap();
    }
    (home, folder)
}

fn typed(command: &str, paths: &[&Path], options: &str) -> Answer {
    let mut words: Vec<OsString> = vec![command.into()];
    words.extend(paths.iter().map(OsString::from));
    words.extend(options.split_whitespace().map(OsString::from));
    holdall_words(words)
}

const TINY: &str = "--model unet-demo --set unet.channels=[8,8] --set unet.groups=2 --set data.image_size=32 \
    --set data.validation=25% --batch-size 2 --gradient-accumulation 2 --lr 2e-3 --num-threads 2";

fn words(folder: &Path, out: &Path, options: &str) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["train".into(), folder.into()];
    words.extend(["--out".into(), out.into()]);
    let options = TINY.split_whitespace().chain(options.split_whitespace());
    words.extend(options.map(OsString::from));
    words
}

fn train(folder: &Path, out: &Path, options: &str) -> Answer {
    holdall_words(words(folder, out, options))
}

fn number(value: &Value, path: &str) -> f64 {
    let found = path.split('.').fold(value, |value, key| &value[key]);
    found.as_f64().unwrap_or_else(|| panic!("{path}: {value}"))
}

#[test]
fn masks_are_learned_evaluated_and_predicted() {
    let (home, folder) = with_disks(16, [48, 40]);
    let log = train(&folder, &home.path("run"), "--epochs 12").exits(DONE);
    for line in [
        "Task: segment",
        "per image     Dice ",
        "pooled        Dice ",
        "threshold     0.50; the best is 0.",
    ] {
        assert!(log.stderr.contains(line), "lacks `{line}`\n{}", log.stderr);
    }
    let file = fs::read_to_string(home.path("run/segmentation.json")).unwrap();
    let file: Value = serde_json::from_str(&file).unwrap();
    assert_eq!(file["images"].as_array().unwrap().len(), 4);
    assert_eq!(file["threshold_curve"].as_array().unwrap().len(), 99);
    let ranks = file["overlays"].as_array().unwrap().iter();
    let ranks: Vec<&str> = ranks.map(|one| one["rank"].as_str().unwrap()).collect();
    assert_eq!(ranks, ["best", "median", "worst"]);
    for one in file["overlays"].as_array().unwrap() {
        for part in ["picture", "truth", "prediction", "difference"] {
            let uri = one[part].as_str().unwrap();
            assert!(uri.starts_with("data:image/png;base64,"), "{part}");
        }
    }

    // The threshold that was best on validation travels with the model, and an evaluation of the same pictures uses it.
    let config = fs::read_to_string(home.path("run/model/config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["threshold"], file["threshold"]);
    let run = home.path("run");
    let scores = typed("eval", &[&run], "--json").exits(DONE).json();
    assert_eq!(scores["threshold"], file["threshold"]);
    assert!(number(&scores, "dice") > 0.5, "{scores}");
    let best = number(&scores, "dice_at_best_threshold");
    assert!((number(&scores, "dice") - best).abs() < 1e-6, "{scores}");
    // It was chosen at the threshold that it is used at.
    let chosen = &home.run().json("summary.json")["best"];
    assert_eq!(chosen["metric"], "dice_at_best_threshold");
    assert!(
        (number(chosen, "value") - best).abs() < 1e-6,
        "{chosen} {scores}"
    );
    assert_eq!(scores["images"].as_array().unwrap().len(), 4);
    let mirrored = typed("eval", &[&run], "--json --mirror").exits(DONE).json();
    assert_ne!(mirrored["auc"], scores["auc"]);

    // Masks at the pictures' own size, with scores where there is truth.
    let out = home.path("predicted");
    let options = format!(
        "--out {} --probabilities png --overlays --json",
        out.display()
    );
    let answer = typed("predict", &[&run, &folder], &options)
        .exits(DONE)
        .json();
    assert_eq!(answer["predictions"].as_array().unwrap().len(), 16);
    for part in ["masks", "probabilities", "overlays"] {
        let picture = image::open(out.join(part).join("3.png")).unwrap();
        assert_eq!((picture.width(), picture.height()), (40, 48), "{part}");
    }
    let mask = image::open(out.join("masks/3.png")).unwrap().into_luma8();
    let probabilities = image::open(out.join("probabilities/3.png"))
        .unwrap()
        .into_luma16();
    let threshold = number(&scores, "threshold") * 65535.0;
    for (mask, probability) in mask.pixels().zip(probabilities.pixels()) {
        let apart = f64::from(probability.0[0]) - threshold;
        let is_set = mask.0[0] == 255;
        assert!(
            is_set == (apart > 0.0) || apart.abs() <= 1.0,
            "{apart} {is_set}"
        );
    }
    let table = fs::read_to_string(out.join("scores.csv")).unwrap();
    assert_eq!(table.lines().count(), 17);
    assert!(table.starts_with("image,dice,iou,"), "{table}");

    // Predictions, and a set's own masks all the more, are not written over.
    let masks = |root: &Path| fs::read(root.join("masks/3.png")).unwrap();
    let truth = masks(&folder);
    for (place, before, parts) in [
        (&out, masks(&out), ["found one that exists", "--overwrite"]),
        (
            &folder,
            truth.clone(),
            ["one that this command reads", "another name"],
        ),
    ] {
        let options = format!("--out {}", place.display());
        let answer = typed("predict", &[&run, &folder], &options);
        answer.refused_with(&["--out", "masks/", parts[0], parts[1]]);
        assert!(masks(place) == before);
    }

    // Pictures alone have no scores; an array has every number.
    let out = home.path("alone");
    let options = format!("--out {} --probabilities npy --json", out.display());
    let pictures = folder.join("images");
    let answer = typed("predict", &[&run, &pictures], &options)
        .exits(DONE)
        .json();
    assert_eq!(answer["predictions"][0].get("scores"), None);
    assert!(!out.join("scores.csv").exists());
    let array = fs::read(out.join("probabilities/0.npy")).unwrap();
    assert_eq!(array.len() % 64, 48 * 40 * 4 % 64);
    assert_eq!(
        fs::read(out.join("masks/0.png")).unwrap(),
        fs::read(home.path("predicted/masks/0.png")).unwrap()
    );
}

/// Masks of greys and channels in files of their own: `predict` reads both as the run did, from its model folder alone too, and takes no
/// mask for a picture.
#[test]
fn predict_reads_masks_and_channels_as_training_did() {
    let (home, folder) = with_disks(8, [32, 32]);
    for number in 0..8 {
        let path = folder.join(format!("masks/{number}.png"));
        let mut mask = image::open(&path).unwrap().into_luma8();
        mask.pixels_mut()
            .for_each(|pixel| pixel.0[0] = pixel.0[0] / 2 + number);
        mask.save(&path).unwrap();
    }
    let binarize = "--epochs 2 --set data.binarize=100";
    train(&folder, &home.path("run"), binarize).exits(DONE);
    let model = home.path("run/model");
    let scores = typed("eval", &[&model, &folder], "--json")
        .exits(DONE)
        .json();
    for (place, out) in [(home.path("run"), "a"), (model, "b")] {
        let options = format!("--json --out {}", home.path(out).display());
        let answer = typed("predict", &[&place, &folder], &options)
            .exits(DONE)
            .json();
        let predictions = answer["predictions"].as_array().unwrap();
        let images = scores["images"].as_array().unwrap();
        assert_eq!((predictions.len(), images.len()), (8, 8));
        for (predicted, evaluated) in predictions.iter().zip(images) {
            assert_eq!(predicted["image"], evaluated["name"]);
            let [predicted, evaluated] =
                [&predicted["scores"], evaluated].map(|one| number(one, "dice"));
            assert!(
                (predicted - evaluated).abs() < 1e-6,
                "{predicted} {evaluated}"
            );
        }
    }
    // Other masks than the model was trained on are an error, not pictures.
    let options = format!(
        "--set data.binarize=null --out {}",
        home.path("c").display()
    );
    typed("predict", &[&home.path("run"), &folder], &options).refused_with(&["masks", "binarize"]);

    let cases = home.path("cases");
    for (images, count) in [("imagesTr", 4), ("imagesTs", 2)] {
        fs::create_dir_all(cases.join(images)).unwrap();
        fs::create_dir_all(cases.join("labelsTr")).unwrap();
        for case in 0..count {
            let picture = image::open(folder.join(format!("images/{case}.png")))
                .unwrap()
                .into_rgb8();
            for channel in 0..3 {
                let grey =
                    GrayImage::from_fn(32, 32, |x, y| Luma([picture.get_pixel(x, y).0[channel]]));
                grey.save(cases.join(format!("{images}/case{case}_000{channel}.png")))
                    .unwrap();
            }
            let label = GrayImage::from_fn(32, 32, |x, y| {
                Luma([u8::from(picture.get_pixel(x, y).0[0] > 100)])
            });
            if images == "imagesTr" {
                label
                    .save(cases.join(format!("labelsTr/case{case}.png")))
                    .unwrap();
            }
        }
    }
    let description = r#"{"channel_names": {"0": "R", "1": "G", "2": "B"}, "labels": {"background": 0, "disc": 1}, "numTraining": 4, "file_ending": ".png"}"#;
    fs::write(cases.join("dataset.json"), description).unwrap();
    train(&cases, &home.path("channels"), "--epochs 1").exits(DONE);
    let out = home.path("d");
    let options = format!("--json --out {}", out.display());
    let tests = cases.join("imagesTs");
    let answer = typed("predict", &[&home.path("channels"), &tests], &options)
        .exits(DONE)
        .json();
    assert_eq!(answer["predictions"].as_array().unwrap().len(), 2);
    assert!(out.join("masks/case0.png").is_file() && out.join("masks/case1.png").is_file());
    fs::remove_file(tests.join("case1_0002.png")).unwrap();
    let options = format!("--out {}", home.path("e").display());
    typed("predict", &[&home.path("channels"), &tests], &options)
        .refused_with(&["3 channel files each", "case1 (2 of 3)"]);
}

#[test]
fn a_model_of_patches_looks_at_tiles_and_memory_changes_nothing() {
    let (home, folder) = with_disks(8, [70, 90]);
    let options = "--epochs 2 --set data.patch=32 --set data.image_size=none";
    train(&folder, &home.path("run"), options).exits(DONE);
    let config = fs::read_to_string(home.path("run/model/config.json")).unwrap();
    assert!(config.contains("\"patch\": 32"), "{config}");
    let run = home.path("run");
    let scores = |options: &str| {
        let mut scores = typed("eval", &[&run], &format!("--json {options}"))
            .exits(DONE)
            .json();
        for key in ["planned_bytes", "process_bytes"] {
            scores.as_object_mut().unwrap().remove(key);
        }
        scores
    };
    let one = scores("--batch-size 1");
    assert_eq!(one, scores("--batch-size 7 --num-threads 1"));
    assert_ne!(one["auc"], scores("--tiles 64")["auc"]);
    let answer = typed("eval", &[&run], "--tiles 33").exits(BAD_INPUT);
    assert!(
        answer.stderr.contains("hint: --tiles 34"),
        "{}",
        answer.stderr
    );
}

/// Of large pictures, almost all memory is that of pixels, masks, probabilities and scores: what is planned is what is held.
#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn an_evaluation_of_large_pictures_plans_what_it_holds() {
    let (home, folder) = with_disks(4, [2000, 1800]);
    let options = "--epochs 1 --set data.image_size=64 --set data.validation=50%";
    train(&folder, &home.path("run"), options).exits(DONE);
    let answer = typed(
        "eval",
        &[&home.path("run"), &folder],
        "--json --num-threads 1",
    )
    .exits(DONE)
    .json();
    // With several threads it depends on the moment whether two pictures are decoded at once, for which there must be room.
    let [planned, held] =
        ["planned_bytes", "process_bytes"].map(|key| crate::typed::bytes(&answer, key));
    assert!(held <= planned, "{held} of {planned}");
    assert!(planned - held <= planned / 12, "{held} of {planned}");
}

#[test]
fn a_killed_segmentation_goes_on_bit_for_bit() {
    let (home, folder) = with_disks(16, [32, 32]);
    let options = "--epochs 30 --set train.save_every=3";
    train(&folder, &home.path("whole"), options).exits(DONE);
    let (whole, killed) = (home.run_named("whole"), home.run_named("killed"));
    let mut running = start(words(&folder, &killed.path, options));
    killed.wait_until(&mut running, |run| {
        run.num_lines() >= 7 && run.last().exists()
    });
    assert!(running.kill(), "it was done before it was killed");
    assert!(killed.num_lines() < whole.num_lines());
    killed.resume("").exits(DONE);
    assert_same_lines(&killed, &whole);
    assert_same_model(&killed, &whole);
    let file = |run: &RunFiles| fs::read(run.file("segmentation.json")).unwrap();
    assert!(file(&killed) == file(&whole), "the overlays and scores too");
}

/// Pictures at their own size are not made smaller where they do not fit: the refusal names tiles that do.
#[test]
fn whole_pictures_that_do_not_fit_are_refused_with_the_tiles_that_do() {
    let (home, folder) = with_disks(4, [32, 32]);
    let options = "--epochs 1 --set data.image_size=none --set data.validation=none";
    train(&folder, &home.path("run"), options).exits(DONE);
    let (_large_home, large) = with_disks(1, [1500, 1400]);
    let run = home.path("run");
    let options = format!("--out {} --memory 260MiB", home.path("out").display());
    let answer = typed("predict", &[&run, &large.join("images")], &options).exits(DOES_NOT_FIT);
    for words in [
        "1400 x 1500 pixels at a time do not fit",
        "hint: --tiles ",
        "hint: --memory ",
    ] {
        assert!(
            answer.stderr.contains(words),
            "lacks `{words}`\n{}",
            answer.stderr
        );
    }
}

/// A figure of every picture, by the file's name.
fn by_picture(
    rows: &Value,
    name: &str,
    figure: impl Fn(&Value) -> &Value,
) -> BTreeMap<String, f64> {
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| {
        let path = Path::new(row[name].as_str().unwrap());
        let file = path.file_name().unwrap().to_string_lossy();
        (file.into_owned(), figure(row).as_f64().unwrap())
    })
    .collect()
}

/// A picture gives the same alone and among others, in training, `eval` and `predict`, and in tiles that are larger than it.
#[test]
fn pictures_of_mixed_sizes_are_computed_each_at_its_own() {
    let (home, folder) = with_disks_of(12, &[[48, 40], [33, 57], [70, 31]]);
    let run = home.path("run");
    let options = "--epochs 4 --set data.image_size=none";
    train(&folder, &run, options).exits(DONE);
    let eval = |paths: &[&Path], options: &str| {
        let paths: Vec<&Path> = [&[run.as_path()], paths].concat();
        typed("eval", &paths, &format!("--json {options}"))
            .exits(DONE)
            .json()
    };
    let auc_of = |scores: &Value| by_picture(&scores["images"], "name", |row| &row["auc"]);
    let all = auc_of(&eval(&[&folder], ""));
    assert_eq!(all.len(), 12);
    assert_eq!(all, auc_of(&eval(&[&folder], "--tiles 128")));

    let out = home.path("out");
    let options = format!("--json --out {}", out.display());
    let predicted = typed("predict", &[&run, &folder], &options)
        .exits(DONE)
        .json();
    let predicted = by_picture(
        &predicted["predictions"],
        "image",
        |row| &row["scores"]["auc"],
    );
    assert_eq!(all, predicted);

    let held_out = fs::read_to_string(run.join("segmentation.json")).unwrap();
    let held_out = auc_of(&serde_json::from_str(&held_out).unwrap());
    assert_eq!(held_out, auc_of(&eval(&[], "")));
    for (picture, auc) in &held_out {
        assert_eq!(all[picture], *auc, "{picture}");
    }

    let alone = home.path("alone");
    for part in ["images", "masks"] {
        fs::create_dir_all(alone.join(part)).unwrap();
        fs::copy(
            folder.join(part).join("1.png"),
            alone.join(part).join("1.png"),
        )
        .unwrap();
    }
    assert_eq!(auc_of(&eval(&[&alone], ""))["1.png"], all["1.png"]);
}

/// The labels of DRIVE's test split are not published: what lies beside its images is the field of view.
#[test]
fn a_field_of_view_is_not_scored_as_truth() {
    let (home, folder) = with_disks(4, [32, 32]);
    let run = home.path("run");
    train(&folder, &run, "--epochs 1").exits(DONE);
    let withheld = home.path("DRIVE/test");
    for part in ["images", "mask"] {
        fs::create_dir_all(withheld.join(part)).unwrap();
    }
    fs::copy(
        folder.join("images/0.png"),
        withheld.join("images/01_test.png"),
    )
    .unwrap();
    fs::copy(
        folder.join("masks/0.png"),
        withheld.join("mask/01_test_mask.png"),
    )
    .unwrap();
    for answer in [
        typed("eval", &[&run, &withheld], ""),
        typed("data", &[Path::new("check"), &withheld], ""),
    ] {
        let answer = answer.exits(BAD_INPUT);
        for words in [
            "expected masks of its images",
            "the fields of view",
            "hint: `holdall predict RUN ",
        ] {
            assert!(
                answer.stderr.contains(words),
                "lacks `{words}`\n{}",
                answer.stderr
            );
        }
    }
    let options = format!("--json --out {}", home.path("out").display());
    let answer = typed("predict", &[&run, &withheld], &options)
        .exits(DONE)
        .json();
    let predictions = answer["predictions"].as_array().unwrap();
    assert_eq!(predictions.len(), 1, "{predictions:?}");
    assert_eq!(predictions[0].get("scores"), None);
}

/// Names of folders are those of the set that was trained on; another set has its own, or its masks would be taken for pictures.
#[test]
fn another_set_has_folders_of_its_own() {
    let (home, folder) = with_disks(4, [32, 32]);
    let own = home.path("own");
    for (from, to) in [("images", "fotos"), ("masks", "zeich")] {
        fs::create_dir_all(own.join(to)).unwrap();
        for number in 0..4 {
            let name = format!("{number}.png");
            fs::copy(folder.join(from).join(&name), own.join(to).join(&name)).unwrap();
        }
    }
    let run = home.path("run");
    let mut words = words(&own, &run, "--task segment --epochs 1");
    let layout = "data={image_subdir: fotos, label_subdir: zeich, image_size: 32, validation: 25%}";
    words.extend(["--set", layout].map(OsString::from));
    holdall_words(words).exits(DONE);
    for set in [&own, &folder] {
        let options = format!("--json --out {}-masks", set.display());
        let json = typed("predict", &[&run, set], &options).exits(DONE).json();
        assert_eq!(json["predictions"].as_array().unwrap().len(), 4);
        typed("eval", &[&run, set], "").exits(DONE);
    }
    // Masks among the pictures would be pictures next time, and the truth is never replaced.
    let images = folder.join("images");
    let inside = format!("--out {}", images.join("found").display());
    typed("predict", &[&run, &images], &inside).refused_with(&["--out", "outside of"]);
    let over = format!("--overwrite --out {}", folder.display());
    let parts = ["--out", "one that this command reads"];
    typed("predict", &[&run, &folder], &over).refused_with(&parts);
    for option in ["--lr 1", "--weight_decay 0.1"] {
        typed("eval", &[&run], option).refused_with(&["no such option of holdall eval"]);
    }
}

/// A photo that EXIF turns has a mask on the pixels of its file: read as truth, it is what was predicted.
#[test]
fn a_predicted_mask_lies_on_the_file_of_its_picture() {
    let (home, folder) = with_disks(4, [32, 32]);
    let run = home.path("run");
    train(&folder, &run, "--epochs 6").exits(DONE);
    let turned = home.path("turned");
    fs::create_dir_all(turned.join("images")).unwrap();
    let image = image::open(folder.join("images/0.png")).unwrap().to_rgb8();
    let file = fs::File::create(turned.join("images/0.png")).unwrap();
    let mut encoder = image::codecs::png::PngEncoder::new(file);
    // One entry, big-endian: orientation 6, to be turned by a quarter.
    let exif = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
    image::ImageEncoder::set_exif_metadata(&mut encoder, exif.to_vec()).unwrap();
    image.write_with_encoder(encoder).unwrap();
    let options = format!("--out {}", turned.display());
    typed("predict", &[&run, &turned.join("images/0.png")], &options).exits(DONE);
    let mask = image::open(turned.join("masks/0.png")).unwrap().to_luma8();
    assert!(
        mask.pixels().any(|pixel| pixel.0 == [255]),
        "nothing was found"
    );
    let scores = typed("eval", &[&run, &turned], "--json").exits(DONE).json();
    assert_eq!(number(&scores, "dice"), 1.0, "{scores}");
}

/// DRIVE's test split has no masks: predicted, and not evaluated.
#[test]
fn pictures_whose_masks_are_withheld_are_predicted() {
    let (home, folder) = with_disks(6, [32, 32]);
    let run = home.path("run");
    train(&folder, &run, "--epochs 1").exits(DONE);
    let set = home.path("DRIVE");
    let copy = |from: &str, to: &str| {
        let to = set.join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(folder.join(from), to).unwrap();
    };
    for number in 0..6 {
        let (image, mask) = (
            format!("images/{number}.png"),
            format!("masks/{number}.png"),
        );
        if number < 4 {
            copy(&image, &format!("training/images/2{number}_training.png"));
            copy(&mask, &format!("training/1st_manual/2{number}_manual1.png"));
            copy(&mask, &format!("training/mask/2{number}_training_mask.png"));
        } else {
            copy(&image, &format!("test/images/0{number}_test.png"));
            copy(&mask, &format!("test/mask/0{number}_test_mask.png"));
        }
    }
    let options = format!("--json --out {}", home.path("out").display());
    let json = typed("predict", &[&run, &set], &options).exits(DONE).json();
    assert_eq!(json["predictions"].as_array().unwrap().len(), 6);
    let parts = [
        "--part test",
        "labels of this split are withheld",
        "holdall predict",
    ];
    typed("eval", &[&run, &set], "--part test").refused_with(&parts);
    let parts = [
        "validation: expected a file or folder named `test`, or a split of the set that has masks",
    ];
    let options = "--task segment --model unet-demo --set data.validation=test";
    typed("train", &[&set], options).refused_with(&parts);
}

/// Shards have the fields of view of the table that they were packed from: the same pixels are scored.
#[test]
fn fields_of_view_are_packed() {
    let (home, folder) = with_disks(4, [32, 32]);
    let run = home.path("run");
    train(&folder, &run, "--epochs 1").exits(DONE);
    fs::create_dir_all(folder.join("fov")).unwrap();
    let right_half = GrayImage::from_fn(32, 32, |x, _| Luma([if x < 16 { 0 } else { 255 }]));
    let mut table = "image,mask,fov\n".to_owned();
    for number in 0..4 {
        right_half
            .save(folder.join(format!("fov/{number}.png")))
            .unwrap();
        table += &format!("images/{number}.png,masks/{number}.png,fov/{number}.png\n");
    }
    let pairs = folder.join("pairs.csv");
    fs::write(&pairs, table).unwrap();
    let scores = |data: &Path, options: &str| {
        let options = format!("--json {options}");
        let scores = typed("eval", &[&run, data], &options).exits(DONE).json();
        ["dice", "specificity", "auc"].map(|key| scores[key].clone())
    };
    let expected = scores(&pairs, "");
    assert_ne!(scores(&pairs, "--set data.field_of_view=none"), expected);
    for options in ["", "--size 64"] {
        let shards = home.path(&format!("shards{}", options.len()));
        let options = format!("--out {} {options}", shards.display());
        typed("data", &[Path::new("pack"), &pairs], &options).exits(DONE);
        assert_eq!(scores(&shards, ""), expected);
    }
    let shards = home.path("smaller");
    let options = format!("--out {} --size 16", shards.display());
    typed("data", &[Path::new("pack"), &pairs], &options).exits(DONE);
    assert_ne!(
        scores(&shards, ""),
        scores(&shards, "--set data.field_of_view=none")
    );
}

/// An option that a segmentation model does not read is refused, not passed over.
#[test]
fn options_about_labels_are_refused() {
    let (home, folder) = with_disks(4, [32, 32]);
    let run = home.path("run");
    train(&folder, &run, "--epochs 1").exits(DONE);
    let texts = home.path("texts.txt");
    fs::write(&texts, "a disk\n").unwrap();
    let texts = format!("--texts {}", texts.display());
    for option in [
        "--top 3",
        "--all-probabilities",
        "--template a{}",
        "--csv masks.csv",
        "--beams 2",
        "--max-tokens 3",
        "--find disk",
        &texts,
    ] {
        let name = option.split(' ').next().unwrap();
        let options = format!("--out {} {option}", home.path("masks").display());
        typed("predict", &[&run, &folder], &options).refused_with(&[name, "leave it out"]);
    }
    assert!(!home.path("masks").exists());
}

/// Two folders that are named are images and masks, whatever they are called, for every command.
#[test]
fn named_folders_are_images_and_masks() {
    let (home, folder) = with_disks(8, [32, 32]);
    for (from, to) in [("images", "fotos"), ("masks", "zeich")] {
        fs::rename(folder.join(from), folder.join(to)).unwrap();
    }
    let named = "--set data.image_subdir=fotos --set data.label_subdir=zeich";
    let check = typed("data", &[Path::new("check"), &folder], named).exits(DONE);
    assert!(check.stdout.contains("8 pairs"), "{}", check.stdout);
    let run = home.path("run");
    let log = train(&folder, &run, &format!("{named} --epochs 1")).exits(DONE);
    let task = "Task: segment (the config has `label_subdir: zeich`)";
    assert!(log.stderr.contains(task), "{}", log.stderr);
    let options = format!("{named} --max-aspect 3");
    let check = typed("data", &[Path::new("check"), &folder], &options).exits(DONE);
    let warning = "warning: --max-aspect: no effect";
    assert!(check.stderr.contains(warning), "{}", check.stderr);
}

/// Small pictures that are no squares stay as they are, and their run has a batch and a rate that suit a U-Net.
#[test]
fn sizes_and_numbers_that_nobody_says_suit_the_pictures() {
    let (home, folder) = with_disks(6, [40, 56]);
    let out = home.path("run");
    let options = "--model unet-demo --set unet.channels=[8,8] --set unet.groups=2 --set train.max_steps=1 \
        --set train.lr_head=1e-3 --num-threads 2 --out";
    let trained = typed("train", &[&folder], &format!("{options} {}", out.display()));
    let trained = trained.exits(DONE);
    for words in [
        "Defaults: effective batch 2, lr 2e-3 (segment, random weights, 5 samples)",
        "Pictures: 56 x 40 pixels",
        "warning: train.lr_head: 1e-3 has no effect",
    ] {
        assert!(
            trained.stderr.contains(words),
            "{words}: {}",
            trained.stderr
        );
    }
    let config = fs::read_to_string(out.join("config.yml")).unwrap();
    for line in [
        "  effective_batch: 2\n",
        "  lr: 0.002\n",
        "model: unet-demo\n",
    ] {
        assert!(config.contains(line), "{line}: {config}");
    }
    assert!(
        config.contains("image_size:\n  - 40\n  - 56\n") || config.contains("image_size: [40, 56]"),
        "{config}"
    );
}
