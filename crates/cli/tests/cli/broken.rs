//! Pictures that cannot be read, of every kind there is: a run trains to its end without them and names each one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::training::{Home, on};
use crate::typed::{DONE, FOUND, holdall_words};

/// Breaks a picture in the way of this number; returns what `skipped.csv` must say of it.
fn break_picture(path: &Path, way: usize) -> &'static str {
    let whole = fs::read(path).unwrap();
    let write = |bytes: &[u8]| fs::write(path, bytes).unwrap();
    match way {
        0 => {
            fs::remove_file(path).unwrap();
            "found no file"
        }
        1 => {
            write(b"");
            "an empty file"
        }
        2 => {
            write(&whole[..whole.len() / 2]);
            "cut short"
        }
        3 => {
            write(b"<html>404</html>");
            "begins with `<html>"
        }
        4 => {
            write(b"\0\0\0\x1cftypavif\0\0\0\0avifmif1");
            "an AVIF"
        }
        5 => {
            // A header of 60,000 x 60,000 pixels.
            let mut bytes = whole.clone();
            let frame = whole
                .windows(2)
                .position(|pair| pair == [0xff, 0xc0])
                .unwrap();
            bytes[frame + 5..frame + 9].copy_from_slice(&[0xea, 0x60, 0xea, 0x60]);
            write(&bytes);
            "at most 100 megapixels"
        }
        6 => {
            // Nothing but what a JPEG begins and ends with.
            write(b"\xff\xd8\xff\xd9");
            "expected a picture that can be decoded"
        }
        _ => {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
            "found a folder"
        }
    }
}

#[test]
fn one_in_twenty_of_every_kind() {
    let home = Home::with_cars(160);
    let mut expected = BTreeMap::new();
    for way in 0..8 {
        let number = 7 + 19 * way;
        let path = home.path(&format!("cars/images/{number:06}.jpg"));
        expected.insert(format!("images/{number:06}.jpg"), break_picture(&path, way));
    }
    let mut digests = Vec::new();
    for workers in [0, 2] {
        let name = format!("run-{workers}");
        let options =
            format!("--effective-batch 16 --batch-size 8 --epochs 2 --num-workers {workers}");
        let run = home.trained(&name, &options);
        let listed = fs::read_to_string(run.file("skipped.csv")).unwrap();
        assert_eq!(listed.lines().next(), Some("part,row,image,reason"));
        assert_eq!(listed.lines().count(), 9, "{listed}");
        for (image, reason) in &expected {
            let line = listed.lines().find(|line| line.contains(image.as_str()));
            let line = line.unwrap_or_else(|| panic!("{image} is not in {listed}"));
            assert!(line.contains(reason), "{line}");
        }
        let summary = run.json("summary.json");
        assert_eq!(summary["skipped"], 8);
        let steps = run.lines("step");
        let sizes: Vec<u64> = steps
            .iter()
            .map(|line| line["samples"].as_u64().unwrap())
            .collect();
        assert_eq!(
            sizes,
            [16, 16, 16, 16, 16, 16, 16, 16, 16].repeat(2),
            "{workers} workers"
        );
        let evaluated = run.lines("evaluation");
        let left_out = evaluated[0]["skipped"].as_u64().unwrap();
        assert_eq!(left_out + evaluated[0]["pictures"].as_u64().unwrap(), 16);
        let of_steps = steps
            .iter()
            .map(|line| line["samples_digest"].as_str().unwrap().to_owned());
        digests.push(of_steps.collect::<Vec<String>>());
    }
    assert_eq!(digests[0], digests[1]);
    // What the run skipped is what the check finds.
    let found = on(
        "data",
        Path::new("check"),
        &format!("{} --json", home.csv().display()),
    );
    let found = found.exits(FOUND).json();
    let text = found.to_string();
    for image in expected.keys() {
        assert!(text.contains(image.as_str()), "{image}: {text}");
    }
}

#[test]
fn a_loader_is_timed_beside_decoding_alone() {
    let home = Home::with_cars(12);
    fs::write(home.path("cars/images/000003.jpg"), "no picture").unwrap();
    for options in [
        "--batch 4 --images 30 --size 32",
        "--eval --batch 5",
        "--decode fast --size 8",
    ] {
        let answer = on(
            "bench",
            Path::new("loader"),
            &format!("{} {options}", home.path("cars/images").display()),
        );
        let json = answer.exits(DONE).json();
        for key in [
            "images",
            "workers",
            "images_per_s",
            "decode_only_images_per_s",
        ] {
            assert!(json[key].as_f64().unwrap() > 0.0, "{key}: {json}");
        }
        assert_eq!((&json["workers"], &json["skipped"]), (&2.into(), &1.into()));
    }
    on("bench", Path::new("loader"), "nowhere").refused_with(&["nowhere", "hint: "]);
}

/// A row without a caption, one without an image and one with a field too many stop nothing, and every command says the same
/// of them.
#[test]
fn rows_that_are_no_samples() {
    let home = Home::with_cars(40);
    let list = fs::read_to_string(home.csv()).unwrap();
    let mut lines: Vec<String> = list.lines().map(str::to_owned).collect();
    let header: Vec<&str> = list.lines().next().unwrap().split(',').collect();
    let without = |column: &str, line: &str| {
        let mut cells: Vec<&str> = line.split(',').collect();
        cells[header.iter().position(|name| *name == column).unwrap()] = "";
        cells.join(",")
    };
    let like = lines
        .iter()
        .find(|line| line.starts_with("images/") && !line.contains('"'));
    let like = like.unwrap().clone();
    lines.insert(9, without("caption", &like));
    lines.insert(20, without("image", &like));
    lines.insert(30, like.clone() + ",more");
    fs::write(home.csv(), lines.join("\n") + "\n").unwrap();
    let fields = header.len();
    let said = format!(
        "Careful: 3 of 43 rows cannot be used (row 10: empty caption, row 21: no image named, row 31: {} of {fields} \
         fields): skipped, as `bad_pictures: skip` says; `holdall data clean ",
        fields + 1
    );
    let config = home.path("cars.yml");
    fs::write(
        &config,
        "model: small\ndata: {train: cars}\ntrain: {effective_batch: 8}\n",
    )
    .unwrap();
    let planned = on("plan", &config, "").exits(DONE);
    assert!(planned.stderr.contains(&said), "{}", planned.stderr);
    let trained = home.train("--effective-batch 8 --epochs 1").exits(DONE);
    assert!(trained.stderr.contains(&said), "{}", trained.stderr);
    let run = home.run();
    assert_eq!(run.json("summary.json")["skipped"], 3);
    let listed = fs::read_to_string(run.file("skipped.csv")).unwrap();
    assert_eq!(listed.lines().count(), 4, "{listed}");
    for line in [
        "train,10,",
        ",empty caption\n",
        "train,21,,no image named\n",
    ] {
        assert!(listed.contains(line), "{listed}");
    }
    let evaluated = on("eval", &run.path, "").exits(DONE);
    assert!(evaluated.stderr.contains(&said), "{}", evaluated.stderr);
    holdall_words(home.words("never", "--set data.bad_pictures=fail")).refused_with(&[
        "3 of 43 rows cannot be used, `bad_pictures: fail` allows none: row 10: empty caption, row 21: no image named",
        "holdall data clean",
    ]);
    // The list that cleaning writes has none of them, and is taken from here on.
    on("data", "clean".as_ref(), &home.csv().display().to_string()).exits(DONE);
    let planned = on("plan", &config, "").exits(DONE);
    assert!(
        !planned.stderr.contains("cannot be used"),
        "{}",
        planned.stderr
    );
}
