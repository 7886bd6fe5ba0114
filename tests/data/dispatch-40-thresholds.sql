/* For each threshold on k the kernel of either side that loses least over that side's layers, and their sum. */
WITH cells AS MATERIALIZED (
    SELECT results.layer, layers.k, study_layers.count, template, config, min(median_us) AS us
    FROM results
    JOIN studies ON studies.name = results.study AND studies.generation = results.generation
    JOIN study_layers ON study_layers.study_id = studies.id AND study_layers.name = results.layer
    JOIN tuning_targets ON tuning_targets.id = study_layers.tuning_target_id
    JOIN layers ON layers.id = tuning_targets.layer_id
    WHERE study = 'dispatch-40' AND outcome = 'correct' AND position IS NOT NULL
    GROUP BY results.layer, template, config
),
thresholds AS (SELECT DISTINCT k AS threshold FROM cells UNION SELECT 13),
sizes AS (
    SELECT threshold, k < threshold AS below, count(DISTINCT layer) AS layers
    FROM thresholds JOIN cells
    GROUP BY 1, 2
),
sides AS (
    SELECT threshold, k < threshold AS below, template, sum(count * us) AS us, count(*) AS served
    FROM thresholds JOIN cells
    GROUP BY 1, 2, template, config
),
best AS (
    SELECT threshold, below, template, min(us) AS us FROM sides JOIN sizes USING (threshold, below)
    WHERE served = layers
    GROUP BY threshold, below
)
SELECT threshold, max(template) FILTER (WHERE below) AS below, max(template) FILTER (WHERE NOT below) AS above,
       round(sum(us) / 1e3, 2) AS total_ms
FROM best
GROUP BY threshold
ORDER BY total_ms;
