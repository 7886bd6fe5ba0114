/* Every rule that `autotune dispatch` tried for a report's study, with its place among them. */
SELECT studies.name AS study, substr(studies.created_at, 1, 10) AS day, rank() OVER (PARTITION BY studies.id ORDER BY median_us) AS place,
       count(*) OVER (PARTITION BY studies.id) AS tried, round(median_us / 1e3, 3) AS sum_ms,
       config ->> '$.property' AS property, config ->> '$.threshold' AS threshold,
       config ->> '$.below_kernels' AS below, config ->> '$.above_kernels' AS above, proposed_by
FROM trials
JOIN studies ON studies.id = study_id
JOIN tuning_targets ON tuning_targets.id = tuning_target_id
WHERE tuning_targets.kind = 'layers' AND outcome = 'correct' AND studies.name LIKE 'report-%'
ORDER BY study, day, place;
