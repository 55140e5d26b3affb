use super::*;

fn found(queries: &[f32], gallery: &[f32], dimension: usize, gallery_of: &[u32]) -> Found {
    let pairs = Pairs::one_each(gallery_of, gallery.len() / dimension).unwrap();
    let job = Job {
        queries: &Features::of(queries, dimension),
        gallery: &Features::of(gallery, dimension),
        pairs: &pairs,
    };
    rank(&job, &Options::default(), &mut |_| true).unwrap()
}

#[test]
fn features_that_are_all_alike_rank_by_the_policy() {
    let alike = found(&[1.0; 4], &[1.0; 4], 1, &[0, 1, 2, 3]);
    for (ties, mean) in [
        (Ties::Optimistic, 1.0),
        (Ties::Mean, 2.5),
        (Ties::Pessimistic, 4.0),
    ] {
        assert_eq!(alike.to_gallery.ranks(ties).mean_rank, mean);
        assert_eq!(alike.to_query.ranks(ties).mean_rank, mean);
    }
    assert_eq!(alike.to_gallery.num_tied(), 4);
}
