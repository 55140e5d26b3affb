//! `holdall retrieval`: features of any framework, against ranks that are counted here one by one.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::Value;
use tempfile::TempDir;

use crate::typed::{Answer, DOES_NOT_FIT, DONE, bytes, holdall, holdall_words, test_device};

/// A folder of features.
struct Home(TempDir);

/// Rows of whole numbers: every score is exact in f64, and ties are ties.
type Rows = Vec<Vec<i32>>;

impl Home {
    fn new() -> Home {
        Home(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        fs::write(self.path(name), contents).unwrap();
    }

    fn npy(&self, name: &str, rows: &Rows) {
        self.write(
            name,
            npy("<f4", rows, |value| (value as f32).to_le_bytes().to_vec()),
        );
    }

    /// Types words; those that end like files are files of this folder.
    fn retrieval(&self, line: &str) -> Answer {
        holdall_words(self.words(line))
    }

    fn words(&self, line: &str) -> Vec<OsString> {
        let is_file = |word: &str| {
            [".npy", ".csv", ".txt", ".safetensors", ".pt"]
                .iter()
                .any(|end| word.contains(end))
        };
        let words = line.split_whitespace().map(|word| {
            if is_file(word) {
                self.path(word).into_os_string()
            } else {
                word.into()
            }
        });
        std::iter::once("retrieval".into()).chain(words).collect()
    }

    fn json(&self, line: &str) -> Value {
        self.retrieval(&format!("{line} --json")).exits(DONE).json()
    }
}

fn npy(format: &str, rows: &Rows, value: impl Fn(i32) -> Vec<u8>) -> Vec<u8> {
    let text = format!(
        "{{'descr': '{format}', 'fortran_order': False, 'shape': ({}, {}), }}\n",
        rows.len(),
        rows.first().map_or(0, Vec::len)
    );
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((text.len() as u16).to_le_bytes());
    file.extend(text.as_bytes());
    file.extend(rows.iter().flatten().flat_map(|&one| value(one)));
    file
}

/// Small whole numbers that repeat themselves, so that scores do.
fn drawn(num_rows: usize, dimension: usize, seed: u64) -> Rows {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as i32 % 4 - 2
    };
    (0..num_rows)
        .map(|_| (0..dimension).map(|_| next()).collect())
        .collect()
}

fn score(a: &[i32], b: &[i32]) -> i32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// With `HOLDALL_TEST_DEVICE=cuda`: kernels that no training step runs.
#[test]
fn ranks_on_a_card_are_those_of_the_cpu() {
    if test_device() == "cpu" {
        return;
    }
    let home = Home::new();
    home.npy("queries.npy", &drawn(150, 40, 1));
    home.npy("gallery.npy", &drawn(150, 40, 2));
    let card = test_device();
    let [cpu, card] = ["cpu", card.as_str()].map(|device| {
        let line = format!("--queries queries.npy --gallery gallery.npy --device {device}");
        let mut ranks = home.json(&line);
        ["query_to_gallery", "gallery_to_query"].map(|direction| ranks[direction].take())
    });
    assert_eq!(cpu, card);
    assert_ne!(cpu[0]["ties"], 0, "{cpu:?}");
}

/// Above and level of each item's best positive, its other positives aside.
fn counted(from: &Rows, to: &Rows, positives: &[Vec<usize>]) -> Vec<Vec<[usize; 2]>> {
    let place = |row: &Vec<i32>, own: &Vec<usize>| {
        let best = own.iter().map(|&at| score(row, &to[at])).max()?;
        let others = || {
            let others = (0..to.len()).filter(|at| !own.contains(at));
            others.map(|at| score(row, &to[at]))
        };
        let above = others().filter(|&score| score > best).count();
        Some([above, others().filter(|&score| score == best).count()])
    };
    let items = from.iter().zip(positives);
    items
        .map(|(row, own)| place(row, own).into_iter().collect())
        .collect()
}

/// Above and level of each positive among all others.
fn counted_each(from: &Rows, to: &Rows, positives: &[Vec<usize>]) -> Vec<Vec<[usize; 2]>> {
    let place = |row: &Vec<i32>, own: usize| {
        let threshold = score(row, &to[own]);
        let others = || {
            let others = (0..to.len()).filter(|&at| at != own);
            others.map(|at| score(row, &to[at]))
        };
        let above = others().filter(|&score| score > threshold).count();
        [above, others().filter(|&score| score == threshold).count()]
    };
    let items = from.iter().zip(positives);
    items
        .map(|(row, own)| own.iter().map(|&own| place(row, own)).collect())
        .collect()
}

/// The usual numbers, counted one by one.
fn expected(places: &[Vec<[usize; 2]>], policy: &str) -> [f64; 7] {
    let rank = |[above, level]: &[usize; 2]| {
        1.0 + *above as f64
            + match policy {
                "optimistic" => 0.0,
                "pessimistic" => *level as f64,
                _ => *level as f64 / 2.0,
            }
    };
    let items: Vec<Vec<f64>> = places
        .iter()
        .filter(|places| !places.is_empty())
        .map(|places| places.iter().map(rank).collect())
        .collect();
    let within = |k: f64| {
        let shares = items.iter().map(|ranks| {
            ranks.iter().filter(|rank| **rank <= k).count() as f64 / ranks.len() as f64
        });
        shares.sum::<f64>() / items.len() as f64
    };
    let mut ranks: Vec<f64> = items.iter().flatten().copied().collect();
    ranks.sort_by(f64::total_cmp);
    let (count, half) = (ranks.len(), ranks.len() / 2);
    let median = if count % 2 == 1 {
        ranks[half]
    } else {
        (ranks[half - 1] + ranks[half]) / 2.0
    };
    let mean = ranks.iter().sum::<f64>() / count as f64;
    let mrr = ranks.iter().map(|rank| 1.0 / rank).sum::<f64>() / count as f64;
    let gain = |rank: f64| 1.0 / (1.0 + rank).log2();
    let ndcg = items.iter().map(|ranks| {
        let found: f64 = ranks
            .iter()
            .filter(|rank| **rank <= 5.0)
            .map(|rank| gain(*rank))
            .sum();
        let most: f64 = (1..=ranks.len().min(5))
            .map(|place| gain(place as f64))
            .sum();
        found / most
    });
    let ndcg = ndcg.sum::<f64>() / items.len() as f64;
    [
        within(1.0),
        within(5.0),
        within(10.0),
        median,
        mean,
        mrr,
        ndcg,
    ]
}

#[track_caller]
fn assert_direction(found: &Value, expected: [f64; 7]) {
    for (key, expected) in [
        "r1",
        "r5",
        "r10",
        "median_rank",
        "mean_rank",
        "mrr",
        "ndcg5",
    ]
    .iter()
    .zip(expected)
    {
        let value = found[key].as_f64().unwrap();
        assert!(
            (value - expected).abs() < 1e-12,
            "{key}: {value}, expected {expected}"
        );
    }
}

fn both_ways(pairs: &[(usize, usize)], queries: usize, gallery: usize) -> [Vec<Vec<usize>>; 2] {
    let mut ways = [vec![Vec::new(); queries], vec![Vec::new(); gallery]];
    for &(query, item) in pairs {
        ways[0][query].push(item);
        ways[1][item].push(query);
    }
    ways
}

/// Features and pairs, several positives on both sides.
fn with_pairs() -> (Home, Rows, Rows, Vec<(usize, usize)>) {
    let home = Home::new();
    let (queries, gallery) = (drawn(40, 6, 1), drawn(15, 6, 2));
    let mut pairs: Vec<(usize, usize)> = (0..40).map(|query| (query, query % 15)).collect();
    pairs.extend([(0, 7), (3, 14), (3, 1), (22, 0)]);
    home.npy("q.npy", &queries);
    home.npy("g.npy", &gallery);
    let lines: Vec<String> = pairs.iter().map(|(q, g)| format!("{q},{g}")).collect();
    home.write("p.csv", format!("query,gallery\n{}\n", lines.join("\n")));
    (home, queries, gallery, pairs)
}

#[test]
fn ranks_are_those_of_counting_under_every_policy() {
    let (home, queries, gallery, pairs) = with_pairs();
    let [of_queries, of_gallery] = both_ways(&pairs, 40, 15);
    for policy in ["optimistic", "pessimistic", "mean"] {
        let json = home.json(&format!(
            "--queries q.npy --gallery g.npy --pairs p.csv --ties {policy} --at 1,3,7"
        ));
        let places = [
            counted(&queries, &gallery, &of_queries),
            counted(&gallery, &queries, &of_gallery),
        ];
        for (key, places) in ["query_to_gallery", "gallery_to_query"].iter().zip(&places) {
            assert_direction(&json[key], expected(places, policy));
            let tied = places.iter().flatten().filter(|place| place[1] > 0).count();
            assert_eq!(json[key]["ties"], tied, "{key}");
        }
        assert_eq!(json["tie_policy"], policy);
        let at = json["query_to_gallery"]["at"].as_object().unwrap();
        assert_eq!(at.keys().collect::<Vec<_>>(), ["1", "3", "7"]);
        assert_eq!(at["1"], json["query_to_gallery"]["r1"]);
    }
}

/// R@k is the share of an item's positives among the first k, other positives being distractors like any item.
#[test]
fn every_positive_counts_where_recall_is_asked_for() {
    let (home, _, gallery, pairs) = with_pairs();
    // Without ties, so that no policy plays a part.
    let spread = |rows: Rows, by: i32| -> Rows {
        let row = |(at, row): (i32, Vec<i32>)| {
            let values = (0..).zip(row);
            values
                .map(|(column, value)| value * by + (at * 37 + column * 11) % 101)
                .collect()
        };
        (0..).zip(rows).map(row).collect()
    };
    let (queries, gallery) = (spread(drawn(40, 6, 8), 211), spread(gallery, 307));
    home.npy("q.npy", &queries);
    home.npy("g.npy", &gallery);
    let [of_queries, of_gallery] = both_ways(&pairs, 40, 15);
    let json = home.json("--queries q.npy --gallery g.npy --pairs p.csv --positives recall");
    assert_eq!(json["positives"], "recall");
    for (key, places) in [
        (
            "query_to_gallery",
            counted_each(&queries, &gallery, &of_queries),
        ),
        (
            "gallery_to_query",
            counted_each(&gallery, &queries, &of_gallery),
        ),
    ] {
        assert!(places.iter().flatten().all(|place| place[1] == 0));
        assert_direction(&json[key], expected(&places, "mean"));
    }
}

/// Shards, number formats and kinds of files change nothing.
#[test]
fn files_of_every_kind_give_the_same() {
    let (home, queries, gallery, pairs) = with_pairs();
    let golden = home.json("--queries q.npy --gallery g.npy --pairs p.csv");
    home.npy("q0.npy", &queries[..13].to_vec());
    home.npy("q1.npy", &queries[13..].to_vec());
    home.write(
        "half.npy",
        npy("<f2", &gallery, |value| {
            f16::from_f32(value as f32).to_le_bytes().to_vec()
        }),
    );
    let brains: Vec<u8> = gallery
        .iter()
        .flatten()
        .flat_map(|&value| bf16::from_f32(value as f32).to_le_bytes())
        .collect();
    let view = || TensorView::new(Dtype::BF16, vec![15, 6], &brains).unwrap();
    home.write(
        "one.safetensors",
        serialize([("text", view())], None).unwrap(),
    );
    home.write(
        "two.safetensors",
        serialize([("text", view()), ("other", view())], None).unwrap(),
    );
    let whole: Rows = pairs
        .iter()
        .map(|&(q, g)| vec![q as i32, g as i32])
        .collect();
    home.write(
        "p.npy",
        npy("<i8", &whole, |value| {
            i64::from(value).to_le_bytes().to_vec()
        }),
    );
    for line in [
        "--queries q0.npy q1.npy --gallery g.npy --pairs p.csv",
        "--queries q.npy --gallery half.npy --pairs p.npy",
        "--queries q.npy --gallery one.safetensors --pairs p.npy --threads 1",
        "--queries q.npy --gallery two.safetensors:text --pairs p.csv --memory 512MiB",
    ] {
        let json = home.json(line);
        for key in ["queries", "gallery", "query_to_gallery", "gallery_to_query"] {
            assert_eq!(json[key], golden[key], "{line}: {key}");
        }
    }
    home.retrieval("--queries q.npy --gallery two.safetensors --pairs p.csv")
        .refused_with(&[
            "two.safetensors",
            "one table of numbers",
            "text",
            "other",
            "two.safetensors:",
        ]);
}

#[test]
fn equal_captions_are_one_item() {
    let home = Home::new();
    let (queries, texts) = (drawn(12, 6, 3), drawn(5, 6, 4));
    let text_of: Vec<usize> = (0..12)
        .map(|at| if at < 5 { at } else { at * at % 5 })
        .collect();
    home.npy("q.npy", &queries);
    home.npy("texts.npy", &texts);
    let mut repeated: Rows = text_of.iter().map(|&text| texts[text].clone()).collect();
    home.npy("repeated.npy", &repeated);
    let lines: Vec<String> = text_of
        .iter()
        .map(|text| format!("a photo of {text}"))
        .collect();
    home.write("c.txt", lines.join("\n"));
    let rows: Vec<String> = lines.iter().map(|line| format!("x,\"{line}\"")).collect();
    home.write("c.csv", format!("image,words\n{}\n", rows.join("\n")));
    let pairs: Vec<(usize, usize)> = text_of.iter().copied().enumerate().collect();
    let [of_queries, of_texts] = both_ways(&pairs, 12, 5);
    let places = [
        counted(&queries, &texts, &of_queries),
        counted(&texts, &queries, &of_texts),
    ];
    for line in [
        "--queries q.npy --gallery texts.npy --captions c.txt",
        "--queries q.npy --gallery repeated.npy --captions c.txt",
        "--queries q.npy --gallery repeated.npy --captions c.csv:words",
    ] {
        let answer = home.retrieval(&format!("{line} --json")).exits(DONE);
        assert!(
            answer.stderr.contains("5 unique texts out of 12"),
            "{}",
            answer.stderr
        );
        assert!(!answer.stderr.contains("Warning"), "{}", answer.stderr);
        let json = answer.json();
        assert_eq!(
            (&json["gallery"], &json["unique_texts"]),
            (&5.into(), &5.into())
        );
        assert_direction(&json["query_to_gallery"], expected(&places[0], "mean"));
        assert_direction(&json["gallery_to_query"], expected(&places[1], "mean"));
    }
    repeated[11][0] += 1;
    home.npy("other.npy", &repeated);
    let answer = home
        .retrieval("--queries q.npy --gallery other.npy --captions c.txt")
        .exits(DONE);
    assert!(
        answer.stderr.contains("Warning: 1 gallery row unlike"),
        "{}",
        answer.stderr
    );
    home.npy("seven.npy", &drawn(7, 6, 5));
    home.retrieval("--queries q.npy --gallery seven.npy --captions c.txt")
        .refused_with(&["c.txt", "12 gallery rows, one per caption, or 5", "found 7"]);
    home.retrieval("--queries seven.npy --gallery texts.npy --captions c.txt")
        .refused_with(&["c.txt", "12 captions and 7 queries"]);
    home.retrieval("--queries q.npy --gallery texts.npy --captions c.csv")
        .refused_with(&["c.csv", "caption", "words"]);
}

#[test]
fn ranks_and_neighbours_as_files() {
    let (home, queries, gallery, pairs) = with_pairs();
    let inputs = "--queries q.npy --gallery g.npy --pairs p.csv";
    home.retrieval(&format!("{inputs} --ranks ranks.csv --ties pessimistic"))
        .exits(DONE);
    let text = fs::read_to_string(home.path("ranks.csv")).unwrap();
    let mut lines = text.lines();
    assert_eq!(
        lines.next(),
        Some("direction,item,positive,rank,above,level")
    );
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), 40 + 15);
    let [of_queries, _] = both_ways(&pairs, 40, 15);
    let places = counted(&queries, &gallery, &of_queries);
    for (query, line) in lines[..40].iter().enumerate() {
        let cells: Vec<&str> = line.split(',').collect();
        let [above, level] = places[query][0];
        assert_eq!(cells[..2], ["query_to_gallery", &query.to_string()]);
        assert!(of_queries[query].contains(&cells[2].parse().unwrap()));
        let rest = [1 + above + level, above, level].map(|number| number.to_string());
        assert_eq!(cells[3..], rest, "{line}");
    }
    assert!(!home.path("ranks.csv.partial").exists());
    home.retrieval(&format!("{inputs} --neighbours n.csv --top 3"))
        .exits(DONE);
    home.retrieval(&format!("{inputs} --neighbours n.npy --top 3"))
        .exits(DONE);
    let text = fs::read_to_string(home.path("n.csv")).unwrap();
    let file = fs::read(home.path("n.npy")).unwrap();
    let header = String::from_utf8_lossy(&file[10..128]).into_owned();
    assert!(
        header.contains("'<i8'") && header.contains("(40, 3)"),
        "{header}"
    );
    let numbers: Vec<i64> = file[128..]
        .chunks(8)
        .map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    for (at, line) in text.lines().skip(1).enumerate() {
        let (query, place) = (at / 3, at % 3);
        let mut order: Vec<usize> = (0..15).collect();
        order.sort_by_key(|&item| (-score(&queries[query], &gallery[item]), item));
        let item = order[place];
        let expected = format!(
            "{query},{},{item},{}",
            place + 1,
            score(&queries[query], &gallery[item])
        );
        assert_eq!(line, expected);
        assert_eq!(numbers[at], item as i64);
    }
    assert_eq!(numbers.len(), 40 * 3);
}

#[test]
fn names_of_outputs_are_checked_before_any_work() {
    let (home, ..) = with_pairs();
    let inputs = "--queries q.npy --gallery g.npy --pairs p.csv";
    for (more, parts) in [
        ("--ranks ranks.npy", ["--ranks", ".csv"]),
        ("--neighbours n.txt", ["--neighbours", ".npy or .csv"]),
        ("--ranks absent/ranks.csv", ["absent", "mkdir"]),
        ("--ranks p.csv", ["p.csv", "one that this command reads"]),
        (
            "--ranks p.csv --overwrite",
            ["p.csv", "one that this command reads"],
        ),
        (
            "--ranks r.csv --neighbours r.csv",
            ["--neighbours", "found that of --ranks"],
        ),
    ] {
        home.retrieval(&format!("{inputs} {more}"))
            .refused_with(&parts);
    }
    for more in [
        "--top 3",
        "--at 0",
        "--ties random",
        "--positives all",
        "--captions c.txt",
    ] {
        home.retrieval(&format!("{inputs} {more}"))
            .exits(crate::typed::BAD_INPUT);
    }
}

#[test]
fn people_read_a_table() {
    let (home, ..) = with_pairs();
    let answer = home
        .retrieval("--queries q.npy --gallery g.npy --pairs p.csv --at 1,2")
        .exits(DONE);
    for part in [
        "Queries: 40 x 6, f32, ",
        "Gallery: 15 x 6, f32, ",
        "Pairs: 44 of ",
    ] {
        assert!(
            answer.stderr.contains(part),
            "lacks `{part}`: {}",
            answer.stderr
        );
    }
    let lines: Vec<&str> = answer.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{}", answer.stdout);
    for part in ["R@1", "R@2", "median rank", "mean rank", "MRR", "tied"] {
        assert!(lines[0].contains(part), "{}", lines[0]);
    }
    assert!(lines[1].trim_start().starts_with("query to gallery") && lines[1].contains('%'));
}

#[test]
fn json_has_the_keys_that_others_rely_on() {
    let (home, ..) = with_pairs();
    let json = home.json("--queries q.npy --gallery g.npy --pairs p.csv --device cpu --threads 2");
    for key in [
        "queries",
        "gallery",
        "query_to_gallery",
        "gallery_to_query",
        "tie_policy",
        "peak_bytes",
        "positives",
        "decided",
        "seconds",
        "device",
    ] {
        assert!(json.get(key).is_some(), "no `{key}` in {json}");
    }
    assert_eq!(
        (&json["queries"], &json["gallery"], &json["device"]),
        (&40.into(), &15.into(), &"cpu".into())
    );
    assert_eq!(
        (&json["tie_policy"], &json["positives"], &json["threads"]),
        (&"mean".into(), &"best".into(), &2.into())
    );
    assert!(json.get("unique_texts").is_none());
    if cfg!(target_os = "linux") {
        assert!(bytes(&json, "peak_bytes") >= bytes(&json, "peak_private_bytes"));
    }
    assert_eq!(json["query_to_gallery"]["ranked"], 40);
}

/// Every comparison was decided somehow, both ways.
#[test]
fn what_was_decided_is_counted() {
    let (home, ..) = with_pairs();
    let json = home.json("--queries q.npy --gallery g.npy --pairs p.csv");
    let decided = &json["decided"];
    let total: u64 = ["at_once", "in_f64", "exactly"]
        .iter()
        .map(|key| decided[key].as_u64().unwrap())
        .sum();
    assert!(total >= 40 * 15, "{decided}");
}

#[test]
fn without_pairs_rows_belong_together_where_there_are_equally_many() {
    let home = Home::new();
    home.npy("q.npy", &drawn(6, 4, 1));
    home.npy("g.npy", &drawn(6, 4, 2));
    home.npy("less.npy", &drawn(5, 4, 2));
    let answer = home
        .retrieval("--queries q.npy --gallery g.npy")
        .exits(DONE);
    assert!(
        answer.stderr.contains("query i belongs to gallery item i"),
        "{}",
        answer.stderr
    );
    home.retrieval("--queries q.npy --gallery less.npy")
        .refused_with(&["6 query rows and 5 gallery rows", "--pairs", "--captions"]);
}

#[test]
fn items_without_a_positive_are_an_error_or_in_the_way() {
    let (home, queries, gallery, _) = with_pairs();
    let pairs: Vec<(usize, usize)> = (0..38).map(|query| (query, query % 13)).collect();
    let lines: Vec<String> = pairs.iter().map(|(q, g)| format!("{q},{g}")).collect();
    home.write("p.csv", lines.join("\n"));
    let inputs = "--queries q.npy --gallery g.npy --pairs p.csv";
    home.retrieval(inputs).refused_with(&[
        "q.npy, row 38",
        "expected a positive of this query",
        "2 query rows",
        "--unpaired ignore",
    ]);
    let answer = home
        .retrieval(&format!("{inputs} --unpaired ignore --json"))
        .exits(DONE);
    assert!(
        answer.stderr.contains("2 query rows without a positive"),
        "{}",
        answer.stderr
    );
    let json = answer.json();
    let [of_queries, of_gallery] = both_ways(&pairs, 40, 15);
    assert_direction(
        &json["query_to_gallery"],
        expected(&counted(&queries, &gallery, &of_queries), "mean"),
    );
    assert_direction(
        &json["gallery_to_query"],
        expected(&counted(&gallery, &queries, &of_gallery), "mean"),
    );
    assert_eq!(
        (
            &json["query_to_gallery"]["ranked"],
            &json["gallery_to_query"]["ranked"]
        ),
        (&38.into(), &13.into())
    );
}

#[test]
fn bad_input_is_named_with_its_file_and_row() {
    let (home, ..) = with_pairs();
    home.npy("wide.npy", &drawn(15, 7, 1));
    home.npy("none.npy", &vec![]);
    home.write("empty.npy", "");
    home.write("empty.csv", "");
    let whole = fs::read(home.path("g.npy")).unwrap();
    home.write("cut.npy", &whole[..whole.len() - 5]);
    home.write("objects.npy", npy("|O", &drawn(15, 6, 1), |_| vec![0; 8]));
    home.write(
        "double.npy",
        npy("<f8", &drawn(15, 6, 1), |value| {
            f64::from(value).to_le_bytes().to_vec()
        }),
    );
    let mut not_finite = drawn(15, 6, 1);
    not_finite[4][2] = 99;
    home.write(
        "nan.npy",
        npy("<f4", &not_finite, |value| {
            let value = if value == 99 { f32::NAN } else { value as f32 };
            value.to_le_bytes().to_vec()
        }),
    );
    home.write("range.csv", "query,gallery\n0,0\n1,15\n");
    home.write("words.csv", "0,0\n1,one\n");
    home.write("model.pt", "x");
    let against = |gallery: &str| format!("--queries q.npy --gallery {gallery} --pairs p.csv");
    for (line, parts) in [
        (
            against("wide.npy"),
            ["wide.npy", "rows of 6 values", "q.npy", "found 7"].as_slice(),
        ),
        (against("empty.npy"), &["empty.npy", "an empty file"]),
        (against("none.npy"), &["none.npy", "at least one row"]),
        (
            against("cut.npy"),
            &[
                "cut.npy",
                "cut short",
                &whole.len().to_string(),
                &(whole.len() - 5).to_string(),
            ],
        ),
        (against("objects.npy"), &["objects.npy", "Python objects"]),
        (
            against("double.npy"),
            &["double.npy", "`<f8`", "astype(np.float32)"],
        ),
        (against("nan.npy"), &["nan.npy, row 4, value 2", "NaN"]),
        (against("model.pt"), &["model.pt", "a pickle runs code"]),
        (against("absent.npy"), &["absent.npy", "could not open it"]),
        (
            "--queries q.npy --gallery g.npy --pairs range.csv".into(),
            &["range.csv, line 3", "from 0 to 14, found 15"],
        ),
        (
            "--queries q.npy --gallery g.npy --pairs words.csv".into(),
            &["words.csv, line 2", "`1,one`"],
        ),
        (
            "--queries q.npy --gallery g.npy --pairs empty.csv".into(),
            &["empty.csv", "an empty file"],
        ),
        (
            "--queries q.npy --gallery g.npy g.npy wide.npy --pairs p.csv".into(),
            &["wide.npy", "as in", "g.npy"],
        ),
    ] {
        home.retrieval(&line).refused_with(parts);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (home, ..) = with_pairs();
    home.retrieval("--queries q.npy --gallery g.npy --pairs p.csv --device cpu --memory 1MiB")
        .ends_with(DOES_NOT_FIT, &["does not fit", "1.0 MiB", "--memory "]);
}

/// Features that are larger than the limit are streamed from their files.
#[test]
#[cfg_attr(
    not(target_os = "linux"),
    ignore = "NOT CHECKED whether a limit holds: this system has no /proc"
)]
fn a_limit_bounds_everything_features_included() {
    let home = Home::new();
    let (num_rows, dimension) = (40_000usize, 1024usize);
    let header = format!(
        "{{'descr': '<f4', 'fortran_order': False, 'shape': ({num_rows}, {dimension}), }}\n"
    );
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    let row = |at: usize| {
        (0..dimension)
            .flat_map(move |column| (((at * 31 + column * 17) % 255) as f32).to_le_bytes())
    };
    file.extend((0..num_rows).flat_map(row));
    home.write("q.npy", &file);
    home.npy("g.npy", &drawn(2, dimension, 5));
    let pairs: Vec<String> = (0..num_rows)
        .map(|query| format!("{query},{}", query % 2))
        .collect();
    home.write("p.csv", pairs.join("\n"));
    let json =
        home.json("--queries q.npy --gallery g.npy --pairs p.csv --device cpu --memory 120MiB");
    assert!(file.len() > 150 << 20);
    assert!(bytes(&json, "peak_bytes") <= 120 << 20, "{json}");
}

/// The smallest limits that are admitted hold too, what is written included.
#[test]
#[cfg_attr(
    not(target_os = "linux"),
    ignore = "NOT CHECKED whether a limit holds: this system has no /proc"
)]
fn a_limit_that_is_admitted_is_kept() {
    let home = Home::new();
    home.npy("q.npy", &drawn(3000, 32, 1));
    home.npy("g.npy", &drawn(3000, 32, 2));
    let mut num_admitted = 0;
    for limit in 12..24 {
        let line = format!(
            "--queries q.npy --gallery g.npy --device cpu --num-threads 2 --memory {limit}MiB --ranks r.csv --overwrite --json"
        );
        let answer = home.retrieval(&line);
        if answer.code == DOES_NOT_FIT {
            assert_eq!(num_admitted, 0, "{limit} MiB after less was enough");
            continue;
        }
        let json = answer.exits(DONE).json();
        assert!(bytes(&json, "peak_bytes") <= limit << 20, "{json}");
        num_admitted += 1;
        if num_admitted == 3 {
            return;
        }
    }
    panic!("nothing was admitted");
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_and_leaves_no_file() {
    use crate::typed::{INTERRUPTED, start};
    let home = Home::new();
    // Minutes of work on one thread.
    home.npy("q.npy", &drawn(200_000, 64, 1));
    home.npy("g.npy", &drawn(200_000, 64, 2));
    let running = start(
        home.words("--queries q.npy --gallery g.npy --threads 1 --device cpu --ranks ranks.csv"),
    );
    std::thread::sleep(std::time::Duration::from_millis(700));
    running.signal("INT");
    let answer = running.answer().exits(INTERRUPTED);
    assert!(
        answer.stderr.contains("Stopped by Ctrl-C"),
        "{}",
        answer.stderr
    );
    assert_eq!(answer.stdout, "");
    let left = fs::read_dir(home.0.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn bench_prints_one_line() {
    for element in ["f32", "f16", "bf16"] {
        let json = holdall(&format!(
            "bench retrieval --queries 60 --gallery 20 --dim 16 --repeat 2 --threads 1 --device cpu --element {element}"
        ))
        .exits(DONE)
        .json();
        for (key, value) in [
            ("queries", 60),
            ("gallery", 20),
            ("dim", 16),
            ("threads", 1),
        ] {
            assert_eq!(json[key], value, "{key}");
        }
        for key in ["ms", "peak_bytes", "mean_rank", "decided", "device"] {
            assert!(
                json.get(key).is_some_and(|value| !value.is_null()),
                "no `{key}` in {json}"
            );
        }
        assert_eq!(json["all_ms"].as_array().unwrap().len(), 2);
        // By chance, in the middle.
        let mean = json["mean_rank"].as_f64().unwrap();
        assert!((5.0..16.0).contains(&mean), "{mean}");
    }
}
